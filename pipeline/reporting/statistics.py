"""Statistics: collected from stages, merged in main, and summarised for the writers.

Every host has one `StatisticsCollector`, to which its stages report. A host other than main `drain`s its collector into
plain data for the control channel. Main `merge`s the data into its own collector and, at each summary, passes
`summaries` to the `StatisticsWriter`s: TensorBoard (`writers`), the console (`console`) and custom writers
named as `module:Class`.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np

log = logging.getLogger(__name__)

PIPELINE = "Pipeline"
"""The category of statistics that belong to no behaviour: queues, stages, hosts."""

HIDDEN = ("Is Training", "Step")
"""Statistics without curves; only the console and the live page show them, as in ML-Agents."""

HOWS = ("mean", "sum", "last", "histogram")
RESERVOIR_SIZE = 1024
"""Maximum number of values stored for a histogram, enough for its shape. Mean, sum, deviation and count are exact."""


@dataclass(frozen=True, slots=True)
class Summary:
    """One statistic over one summary period."""

    how: str
    """How the values are combined: `mean`, `sum`, `last` or `histogram`."""
    mean: float
    sum: float
    std: float
    """Population standard deviation of the values (not of their mean)."""
    count: int
    """Number of values, at least 1."""
    last: float
    """The last value; with several hosts, the value from the last report to arrive."""
    values: tuple[float, ...] = ()
    """For a histogram: all values, or a uniform sample of `RESERVOIR_SIZE` of them. Empty for other statistics."""

    @classmethod
    def single(cls, value: float) -> Summary:
        """Return the summary of a single value."""
        return cls("last", value, value, 0.0, 1, value)

    @property
    def value(self) -> float:
        """The number to display: the sum, the last value or the mean, depending on `how`."""
        if self.how == "sum":
            return self.sum
        return self.last if self.how == "last" else self.mean


class StatisticsWriter(Protocol):
    """Receives summaries; implement this protocol to send summaries to other services.

    The inherited methods do nothing.
    """

    def write(self, category: str, summaries: Mapping[str, Summary], step: int) -> None:
        """Write the summaries of one period.

        Args:
            category: behaviour name, or `Pipeline`.
            summaries: the summaries, keyed by statistic name; a statistic without values is absent.
            step: nominal step of the summary, the x value of a curve.
        """

    def add_property(self, category: str, name: str, value: object) -> None:
        """Write a one-time property, such as a behaviour's `hyperparameters` (a nested dict)."""
        return

    def rewind(self, category: str, step: int) -> None:
        """Remove what was written beyond a step, at which the run continues. A custom writer may lack this."""
        return

    def mark(self, category: str, step: int, kind: str, text: str) -> None:
        """Mark an event on the curves, such as `checkpoint`. A custom writer may lack this."""
        return

    def close(self) -> None:
        """Flush buffers and release files; may be called more than once."""
        return


@dataclass(slots=True)
class _Accumulator:
    """One statistic since the last summary, in constant memory."""

    how: str
    count: int = 0
    sum: float = 0.0
    mean: float = 0.0
    m2: float = 0.0
    """Sum of squared deviations from the mean."""
    last: float = 0.0
    values: list[float] = field(default_factory=list)

    def combine(
        self, count: int, total: float, mean: float, m2: float, last: float, values: Sequence[float], rng: random.Random
    ) -> None:
        """Add other values, given by their moments (Chan, Golub and LeVeque 1979, equations 2.1).

        Unlike a sum of squares, this avoids cancellation errors. For a histogram, `values` has all other values, or a
        uniform sample of them. All values so far are equally likely to be in the reservoir (Vitter 1985, algorithm R).
        """
        together = self.count + count
        if self.how == "histogram" and len(values) < count:
            self.values = _merged_sample(self.values, self.count, values, count, rng)
        elif self.how == "histogram":
            for seen, value in enumerate(values, self.count + 1):
                if len(self.values) < RESERVOIR_SIZE:
                    self.values.append(value)
                elif (place := int(rng.random() * seen)) < RESERVOIR_SIZE:
                    self.values[place] = value
        delta = mean - self.mean
        self.m2 += m2 + delta * delta * self.count * count / together
        self.mean += delta * count / together
        self.sum += total
        self.count = together
        self.last = last


_RECORDED = [item.name for item in fields(_Accumulator)]
"""What a host's report says about a statistic."""


def _merged_sample(
    ours: list[float], our_count: int, theirs: Sequence[float], their_count: int, rng: random.Random
) -> list[float]:
    """Merge two samples into one uniform sample, to which each contributes in proportion to its number of values."""
    if len(ours) + len(theirs) <= RESERVOIR_SIZE:
        return [*ours, *theirs]
    take, left, other = 0, our_count, their_count
    for _ in range(RESERVOIR_SIZE):
        if rng.random() * (left + other) < left:
            take, left = take + 1, left - 1
        else:
            other -= 1
    return rng.sample(ours, take) + rng.sample(theirs, RESERVOIR_SIZE - take)


class StatisticsCollector:
    """Collects values per category and name until they are summarised or sent. Not thread-safe.

    Values that are not finite numbers are skipped, with a warning for the first value of each statistic. Memory depends
    on the number of different names, not on the number of values.

    Args:
        seed: seed for choosing which values of a large histogram to store.
    """

    def __init__(self, seed: int = 0) -> None:
        self._accumulators: dict[str, dict[str, _Accumulator]] = {}
        self.on_first: Callable[[], object] | None = None
        """Called with the first statistic that is added from now on, perhaps in another thread; then becomes None."""
        self._rng = random.Random(seed)
        self._mixed: set[tuple[str, str]] = set()
        self._not_finite: set[tuple[str, str]] = set()

    def add(self, category: str, name: str, value: float, how: str = "mean") -> None:
        """Report a value; see `headrace.stages.stage.Statistics`.

        Raises:
            ValueError: if `how` is not one of `HOWS`.
        """
        value = float(value)
        accumulator = self._accumulator(category, name, how)
        if not math.isfinite(value):
            self._warn_not_finite(category, name, value)
            return
        accumulator.combine(1, value, value, 0.0, value, (value,), self._rng)

    def extend(self, category: str, name: str, values: Iterable[float], how: str = "histogram") -> None:
        """Report many values of one statistic. An array is used as it is.

        Raises:
            ValueError: if `how` is not one of `HOWS`.
        """
        array = np.asarray(values if isinstance(values, np.ndarray) else [*values], np.float64).ravel()
        accumulator = self._accumulator(category, name, how)
        finite = np.isfinite(array)
        if not finite.all():
            self._warn_not_finite(category, name, float(array[~finite][0]))
            array = array[finite]
        if array.size:
            mean = float(array.mean())
            m2 = float(np.square(array - mean).sum())
            values = array.tolist() if accumulator.how == "histogram" else ()
            accumulator.combine(len(array), float(array.sum()), mean, m2, float(array[-1]), values, self._rng)

    def drain(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return everything collected so far as plain data (numbers, strings, lists, dicts), and start over."""
        drained: dict[str, dict[str, dict[str, Any]]] = {}
        for category, named in self._accumulators.items():
            records = drained[category] = {}
            for name, accumulator in named.items():
                records[name] = {field_name: getattr(accumulator, field_name) for field_name in _RECORDED}
        self._accumulators = {}
        return drained

    def merge(self, plain: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
        """Add the values that another collector's `drain` returned."""
        for category, named in plain.items():
            for name, record in named.items():
                accumulator = self._accumulator(category, name, record["how"])
                if record["count"]:
                    count, total, mean, m2, last = (record[key] for key in ("count", "sum", "mean", "m2", "last"))
                    accumulator.combine(count, total, mean, m2, last, record["values"], self._rng)

    def summaries(self, category: str) -> dict[str, Summary]:
        """Return summaries of a category's statistics that have values, and begin a new period for the category."""
        summaries = {}
        for name, one in self._accumulators.pop(category, {}).items():
            if one.count:
                std = math.sqrt(one.m2 / one.count)
                summaries[name] = Summary(one.how, one.mean, one.sum, std, one.count, one.last, tuple(one.values))
        return summaries

    def _accumulator(self, category: str, name: str, how: str) -> _Accumulator:
        named = self._accumulators.get(category)
        if named is None:
            named = self._accumulators[category] = {}
            if self.on_first is not None:
                first, self.on_first = self.on_first, None
                first()
        accumulator = named.get(name)
        if accumulator is None or accumulator.how != how:
            if how not in HOWS:
                raise ValueError(
                    f"statistic {name!r} of {category}: unknown how={how!r}; expected one of {', '.join(HOWS)}"
                )
            if accumulator is None:
                accumulator = named[name] = _Accumulator(how)
            else:
                # Warn once and keep the first `how`, because an odd curve should not stop the training.
                if (category, name) not in self._mixed:
                    self._mixed.add((category, name))
                    text = (
                        "Statistic %r of %s is reported both as %r and as %r; its summaries use %r. Always report it "
                        "the same way, or use two names."
                    )
                    log.warning(text, name, category, accumulator.how, how, accumulator.how)
        return accumulator

    def _warn_not_finite(self, category: str, name: str, value: float) -> None:
        if (category, name) not in self._not_finite:
            self._not_finite.add((category, name))
            text = (
                "Statistic %r of %s got the value %s; non-finite values are omitted (this warning appears only once)."
            )
            log.warning(text, name, category, value)

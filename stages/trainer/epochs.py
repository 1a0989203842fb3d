"""Statistics of whole epochs: minimum, mean and maximum of what a trainer reports, over `evaluation.every` steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from headrace.stages.stage import Statistics

_MEASURES = {
    "Policy/Q1": "Q1",
    "Policy/Q2": "Q2",
    "Policy/Value": "V",
    "Policy/Log Probability": "LogPi",
}
"""Statistics with `Min`, `Mean` and `Max` behind their names, and the names of their epochs."""
_RETURNS = "Environment/Cumulative Reward"


@dataclass(slots=True)
class _Spread:
    lowest: float = np.inf
    total: float = 0.0
    count: int = 0
    highest: float = -np.inf


class EpochStatistics:
    """Passes statistics on, and keeps the spread of some of them until their epoch is over.

    Args:
        statistics: receives all of them.
        every: trainer steps of an epoch.
        ended: called with an epoch's last step and its statistics, if there are any.
    """

    def __init__(self, statistics: Statistics, every: int, ended: Callable[[int, Mapping[str, float]], None]) -> None:
        self._statistics = statistics
        self._every = every
        self._ended = ended
        self._epoch: int | None = None
        self._spreads: dict[str, _Spread] = {}

    def add(self, category: str, name: str, value: float, how: str = "mean") -> None:
        """Report a value."""
        self._statistics.add(category, name, value, how)
        measure, _, kind = name.rpartition(" ")
        if measure in _MEASURES:
            self._keep(_MEASURES[measure], kind, value)

    def extend(self, category: str, name: str, values: Iterable[float], how: str = "histogram") -> None:
        """Report many values of one statistic."""
        found = list(values)
        self._statistics.extend(category, name, found, how)
        if name == _RETURNS:
            for value in found:
                for kind in ("Min", "Mean", "Max"):
                    self._keep("EpRet", kind, value)

    def advance(self, step: int) -> None:
        """Note the trainer's step; the epoch that it ends is reported. What a resumed run has missed of one is not."""
        epoch = step // self._every
        if self._epoch is not None and epoch > self._epoch:
            if self._spreads:
                self._ended(epoch * self._every, self._values())
            self._spreads = {}
        self._epoch = epoch

    def _keep(self, name: str, kind: str, value: float) -> None:
        spread = self._spreads.setdefault(name, _Spread())
        if kind == "Min":
            spread.lowest = min(spread.lowest, value)
        elif kind == "Max":
            spread.highest = max(spread.highest, value)
        else:
            spread.total += value
            spread.count += 1

    def _values(self) -> dict[str, float]:
        values = {}
        for name, spread in self._spreads.items():
            if spread.count:
                mean = spread.total / spread.count
                kinds = {"Min": spread.lowest, "Mean": mean, "Max": spread.highest}
                values.update({f"Epoch/{name} {kind}": value for kind, value in kinds.items()})
        return values

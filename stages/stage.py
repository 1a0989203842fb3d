"""The Stage: one class with one job, typed input and output, and no knowledge of its neighbours.

A stage defines what it does with one item (`process`); all waiting, closing, credits and checkpoints are in the loop
that runs it, `headrace.stages.loop`. Sources, which have no inlet, define what they yield (`produce`).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from headrace.stages.activity import Activity, Timings

In = TypeVar("In")
Out = TypeVar("Out")

Yielded = Iterable[Out] | AsyncIterable[Out] | None


class Statistics(Protocol):
    """Receives a stage's numbers; `pipeline` sends them to TensorBoard, the console and `timers.json`."""

    def add(self, category: str, name: str, value: float, how: str = "mean") -> None:
        """Report a value.

        Args:
            category: behaviour name, or `Pipeline`.
            name: the statistic's name, such as `Policy/Learning Rate`.
            value: the number.
            how: `mean`, `sum`, `last` or `histogram` (mean, with the distribution beside it) over a summary period.
        """

    def extend(self, category: str, name: str, values: Iterable[float], how: str = "histogram") -> None:
        """Report many values of one statistic."""


class NoStatistics:
    """Statistics that go nowhere: a stage alone, in a test or a script."""

    def add(self, category: str, name: str, value: float, how: str = "mean") -> None:
        """Ignore a value."""

    def extend(self, category: str, name: str, values: Iterable[float], how: str = "histogram") -> None:
        """Ignore the values."""


@dataclass(frozen=True)
class StageContext:
    """Passed to a stage at its start: its identity, and where it may report and write."""

    name: str
    """The stage's name in the graph, unique with `replica`: the key of its part of a checkpoint."""
    replica: int = 0
    seed: int = 0
    """Seed of this stage in this replica, derived from the run's seed."""
    run_folder: Path | None = None
    """`results/<run-id>`, where a stage may write files of its own; None for a stage alone."""
    statistics: Statistics = field(default_factory=NoStatistics)
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("headrace.stages"))
    activity: Activity = field(default_factory=Activity)
    """Marked by the loop that runs the stage."""
    timings: Timings = field(default_factory=Timings)
    """Receives the times of work, of which `timers.json` and what holds a run up are made."""


class Stage(Generic[In, Out]):
    """Base class of stages; override what is needed.

    The loop calls `start`, then `process` for each item, `finish` when the inlet has ended, and always `stop`.
    """

    context: StageContext
    """What the stage was started with, unless the class or its constructor gives the name another meaning."""
    may_block = False
    """True for stages whose work is meant to occupy their host (a trainer); others are named when they block."""

    def start(self, context: StageContext) -> Awaitable[None] | None:
        """Open what the stage needs. May be `async`."""
        self.keep_context(context)
        return None

    def keep_context(self, context: StageContext) -> None:
        """Keep the context; the loop that runs the stage calls this before `start`, which a class may override."""
        if not hasattr(type(self), "context") and isinstance(vars(self).get("context", context), StageContext):
            object.__setattr__(self, "context", context)  # also of a frozen dataclass

    def process(self, item: In) -> Yielded[Out]:
        """Handle one item: a generator, plain or async, that yields none, one or many items; or None.

        Arrays in `item` must not be changed, and arrays that are kept beyond the call must be copied.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a process() method")

    def progress(self) -> int | None:
        """A number that changes while the stage gets on with one item; None while it waits by right, as for a person.

        Asked about once a second, to find stages that await for ever (`pipeline.supervision`). Only stages whose work
        on one item takes long, and that await meanwhile, need one.
        """
        return 0

    def finish(self) -> Yielded[Out]:
        """Yield what is still held, when the inlet has ended."""
        return None

    def stop(self) -> Awaitable[None] | None:
        """Release what `start` opened; called exactly once, also after a failure. May be `async`."""
        return None

    def state_dict(self) -> Mapping[str, Any]:
        """The state that survives a resume: plain values and NumPy arrays, nested in dicts and lists."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned. Called after `start` and before the first item."""


class Source(Stage[None, Out]):
    """A stage without an inlet."""

    def produce(self) -> AsyncIterator[Out]:
        """Yield items until the source is exhausted or `request_stop` was called."""
        raise NotImplementedError(f"{type(self).__name__} needs a produce() method")

    def request_stop(self) -> None:
        """Ask `produce` to end soon, so that the pipeline drains."""
        raise NotImplementedError(f"{type(self).__name__} needs a request_stop() method")

"""The Stage: one class with one job, typed input and output, and no knowledge of its neighbours.

A stage defines what it does with one item (`process`); the loop that runs it, `headrace.stages.loop`, does all waiting,
closing, credits and checkpoints. Sources, which have no inlet, define what they yield (`produce`).
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
            how: `mean`, `sum`, `last` or `histogram` (mean, plus the distribution) over a summary period.
        """

    def extend(self, category: str, name: str, values: Iterable[float], how: str = "histogram") -> None:
        """Report many values of one statistic."""


class NoStatistics:
    """Statistics that go nowhere: for a single stage in a test or a script."""

    def add(self, category: str, name: str, value: float, how: str = "mean") -> None:
        """Ignore a value."""

    def extend(self, category: str, name: str, values: Iterable[float], how: str = "histogram") -> None:
        """Ignore the values."""


@dataclass(frozen=True)
class StageContext:
    """A stage's context, received at its start: its identity, and where it puts reports and files."""

    name: str
    """The stage's name in the graph, unique with `replica`: the key of its part of a checkpoint."""
    replica: int = 0
    seed: int = 0
    """Seed of this stage in this replica, derived from the run's seed."""
    run_folder: Path | None = None
    """`results/<run-id>`, where a stage may write its own files; None for a stage outside a run."""
    statistics: Statistics = field(default_factory=NoStatistics)
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("headrace.stages"))
    activity: Activity = field(default_factory=Activity)
    """The stage's current work, marked by the loop that runs it."""
    timings: Timings = field(default_factory=Timings)
    """Receives the times of work, the source of `timers.json` and of the run's bottleneck."""


class Stage(Generic[In, Out]):
    """Base class of stages; override what is needed.

    The loop calls `start`, then `process` for each item, `finish` when the inlet has ended, and always `stop`.
    """

    context: StageContext
    """The context received at the start, unless the class or its constructor uses this name for something else."""
    may_block = False
    """True for stages that are meant to occupy their host, such as trainers; others cause a warning when they block."""

    def start(self, context: StageContext) -> Awaitable[None] | None:
        """Open what the stage needs. May be `async`."""
        self.keep_context(context)
        return None

    def keep_context(self, context: StageContext) -> None:
        """Keep the context; the loop that runs the stage calls this before `start`, which a class may override."""
        if not hasattr(type(self), "context") and isinstance(vars(self).get("context", context), StageContext):
            object.__setattr__(self, "context", context)  # works for a frozen dataclass too

    def process(self, item: In) -> Yielded[Out]:
        """Handle one item: a generator, plain or async, that yields any number of items; or None.

        Do not change arrays in `item`, and copy those that are kept beyond the call.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a process() method")

    def progress(self) -> int | None:
        """A number that changes while the stage makes progress with one item; None while it waits legitimately.

        Supervision (`pipeline.supervision`) calls this about once a second, to find stages that await forever. Only
        stages that work on one item for a long time, and await meanwhile, need to override it.
        """
        return 0

    def finish(self) -> Yielded[Out]:
        """Yield what the stage still holds, when the inlet has ended."""
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
    """A stage without an input."""

    def produce(self) -> AsyncIterator[Out]:
        """Yield items until the source is exhausted or `request_stop` is called."""
        raise NotImplementedError(f"{type(self).__name__} needs a produce() method")

    def request_stop(self) -> None:
        """Tell `produce` to end soon, so that the pipeline drains."""
        raise NotImplementedError(f"{type(self).__name__} needs a request_stop() method")

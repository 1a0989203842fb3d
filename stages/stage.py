"""The Stage: one class with one job, typed input and output, and no knowledge of its neighbours.

A stage defines what it does with one item (`process`). The loop that runs it, `headrace.stages.loop`, handles all
waiting, closing, credits and checkpoints. A source has no input queue, and defines what it yields (`produce`).
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
    """Receives a stage's statistics, which `pipeline` sends to TensorBoard and the console."""

    def add(self, category: str, name: str, value: float, how: str = "mean") -> None:
        """Report a value.

        Args:
            category: behaviour name, or `Pipeline`.
            name: the statistic's name, such as `Policy/Learning Rate`.
            value: the number.
            how: how values are combined over a summary period: `mean`, `sum`, `last` or `histogram` (mean and
                distribution).
        """

    def extend(self, category: str, name: str, values: Iterable[float], how: str = "histogram") -> None:
        """Report many values of one statistic."""


class NoStatistics:
    """A `Statistics` that discards everything, for a single stage in a test or a script."""

    def add(self, category: str, name: str, value: float, how: str = "mean") -> None:
        """Discard a value."""

    def extend(self, category: str, name: str, values: Iterable[float], how: str = "histogram") -> None:
        """Discard the values."""


@dataclass(frozen=True)
class StageContext:
    """What a stage receives when it starts: its identity, and where to send statistics and write files."""

    name: str
    """The stage's name in the graph. Together with `replica`, it uniquely identifies the stage's part of a
    checkpoint."""
    replica: int = 0
    seed: int = 0
    """Seed for this replica of the stage, derived from the run's seed."""
    run_folder: Path | None = None
    """`results/<run-id>`, where a stage may write its own files; None for a stage outside a run."""
    statistics: Statistics = field(default_factory=NoStatistics)
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("headrace.stages"))
    activity: Activity = field(default_factory=Activity)
    """The stage's current work, as marked by the loop that runs the stage."""
    timings: Timings = field(default_factory=Timings)
    """Adds up how long each kind of work takes, for finding the run's bottleneck."""


class Stage(Generic[In, Out]):
    """Base class of stages; override only the methods that the stage needs.

    The loop calls `start`, then `process` for each item, `finish` when the input has ended, and always `stop`.
    """

    context: StageContext
    """The context received at the start, unless the class or its constructor uses this name for something else."""
    may_block = False
    """True for stages that are meant to occupy their host, such as trainers; other stages cause a warning if they
    block."""

    def start(self, context: StageContext) -> Awaitable[None] | None:
        """Open the resources that the stage needs. May be `async`."""
        self.keep_context(context)
        return None

    def keep_context(self, context: StageContext) -> None:
        """Store the context; the loop calls this before `start`, which a class may override."""
        if not hasattr(type(self), "context") and isinstance(vars(self).get("context", context), StageContext):
            object.__setattr__(self, "context", context)  # works for frozen dataclasses too

    def process(self, item: In) -> Yielded[Out]:
        """Handle one item: either yield any number of results (as a plain or async generator), or return None.

        Do not modify arrays in `item`, and copy any that are still needed after the call.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a process() method")

    def progress(self) -> int | None:
        """Return a number that changes as the stage makes progress with one item; None during a legitimate wait.

        Supervision (`pipeline.supervision`) calls this about once a second, to find stages that wait forever. Only a
        stage that works on one item for a long time, and awaits during that work, needs to override it.
        """
        return 0

    def finish(self) -> Yielded[Out]:
        """Yield the results that the stage still holds, after the input has ended."""
        return None

    def stop(self) -> Awaitable[None] | None:
        """Release the resources that `start` opened; called exactly once, even after a failure. May be `async`."""
        return None

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state that survives a resume: plain values and NumPy arrays, nested in dicts, lists, tuples."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned. Called after `start`, before the first item."""


class Source(Stage[None, Out]):
    """A stage without an input queue."""

    def produce(self) -> AsyncIterator[Out]:
        """Yield items until the source is exhausted or `request_stop` is called."""
        raise NotImplementedError(f"{type(self).__name__} needs a produce() method")

    def request_stop(self) -> None:
        """Make `produce` end soon, so the pipeline drains."""
        raise NotImplementedError(f"{type(self).__name__} needs a request_stop() method")

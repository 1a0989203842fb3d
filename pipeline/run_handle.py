"""What a Python caller uses to control a run: a stop request, and callbacks for summaries and checkpoints."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from headrace.pipeline.diagnosis.rules import FINDINGS
from headrace.pipeline.hosts.protocol import describe_failure
from headrace.pipeline.main.coordinator import Coordinator
from headrace.pipeline.reporting.console import Progress, ProgressSnapshot
from headrace.pipeline.reporting.statistics import PIPELINE, StatisticsWriter, Summary
from headrace.stages.errors import is_failure
from headrace.stages.user_calls import notify_user

Notified = TypeVar("Notified")


class StopRequest:
    """Requests that a run stop: the run drains, saves a checkpoint and returns.

    It can be used from any thread or callback.
    """

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._calls: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def set(self) -> None:
        """Request a stop; may be called before the run begins, and more than once."""
        with self._lock:
            self._requested.set()
            calls, self._calls = self._calls, []
        for call in calls:
            call()

    def is_set(self) -> bool:
        """Return True if a stop was requested."""
        return self._requested.is_set()

    def event(self) -> asyncio.Event:
        """Return an event for the running event loop that is set when the stop is requested."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

        with self._lock:
            if not self._requested.is_set():
                self._calls.append(tell)
                return event
        event.set()
        return event


@dataclass(frozen=True)
class SummaryWritten:
    """The values of one behaviour's summary, evaluation or epoch."""

    behavior: str
    step: int
    values: Mapping[str, float]
    """The values that TensorBoard shows, keyed by statistic name (docs/statistics.md)."""

    @property
    def mean_reward(self) -> float | None:
        """Mean return of the episodes that ended since the last summary; None if no episode ended.

        The value is also None at an evaluation and at the end of an epoch.
        """
        return self.values.get("Environment/Cumulative Reward")


@dataclass(frozen=True)
class CheckpointWritten:
    """A complete checkpoint, which a resumed run would start from."""

    number: int
    folder: Path
    """Folder of all checkpoints, `results/<run-id>/checkpoints`."""
    steps: Mapping[str, int]
    """Number of steps, keyed by behaviour."""


def join_callbacks(
    coordinator: Coordinator,
    on_summary: Callable[[SummaryWritten], object] | None,
    on_checkpoint: Callable[[CheckpointWritten], object] | None,
) -> None:
    """Connect callbacks to a run. The run calls them in its event loop, so they should be quick.

    A callback that raises ends the run with a checkpoint, and the error names the callback.
    """
    if on_summary is not None:
        coordinator.reporter.add_writer(_SummaryCalls(guarded("on_summary", on_summary, coordinator)))
    if on_checkpoint is not None:
        tell = guarded("on_checkpoint", on_checkpoint, coordinator)

        def written() -> None:
            steps = {name: state.step for name, state in coordinator.starter.behaviors.items()}
            checkpointing = coordinator.checkpointing
            tell(CheckpointWritten(checkpointing.newest, checkpointing.folder, steps))

        coordinator.checkpointing.written = written


class _SummaryCalls(StatisticsWriter):
    """A statistics writer that calls a function with each summary; the run's result has the findings."""

    def __init__(self, tell: Callable[[SummaryWritten], None]) -> None:
        self._tell = tell

    def write(self, category: str, summaries: Mapping[str, Summary], step: int) -> None:
        if category != PIPELINE and not any(name.startswith(FINDINGS) for name in summaries):
            self._tell(SummaryWritten(category, step, {name: summary.value for name, summary in summaries.items()}))


def guarded(name: str, call: Callable[[Notified], object], coordinator: Coordinator) -> Callable[[Notified], None]:
    """Wrap a caller's function.

    If the function raises, it is not called again, and the run ends with an error naming it.
    """
    broken = False

    def called(value: Notified) -> None:
        nonlocal broken
        if broken:
            return
        try:
            notify_user(call, value)
        except BaseException as error:
            if not is_failure(error):
                raise
            broken = True
            failed = describe_failure(name, error)
            coordinator.shutdown.cause = coordinator.shutdown.cause or error
            coordinator.shutdown.fail(replace(failed, message=f"{name}: {failed.message}"))

    return called


@dataclass(frozen=True)
class RunOptions:
    """The caller's options for a run."""

    environment: Any = None
    """Replaces the environment that the configuration names: a Gymnasium or PettingZoo environment, a function or class
    that makes one, a list of these for the instances, a vector environment, or an id (docs/python.md)."""
    stop: StopRequest | asyncio.Event | None = None
    """When this is set, the run stops cleanly: it drains, saves a checkpoint and exports its policies. An
    `asyncio.Event` works only in the event loop that it belongs to."""
    on_progress: Callable[[ProgressSnapshot], object] | None = None
    """Called about once a second with the run's progress."""
    on_summary: Callable[[SummaryWritten], object] | None = None
    """Called at each summary of each behaviour, and at the end of each evaluation and epoch."""
    on_checkpoint: Callable[[CheckpointWritten], object] | None = None
    """Called when a checkpoint is complete."""
    progress: Progress = field(default_factory=lambda: Progress(enabled=False))
    """The live table, which is not shown by default."""
    console: bool = True
    """True to log versions and a line per summary, as ML-Agents does."""
    on_start: Callable[[Callable[[], bool]], object] | None = None
    """Called once, just before the hosts start, with a function that returns True if a clean end would now save
    something. Any thread may call that function."""
    watched: bool = False
    """True if the caller has a `LoopWatch` on the event loop."""

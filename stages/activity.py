"""Tracks what this process's stages are doing, and how long each kind of work takes.

Each stage's loop updates the stage's record, and supervision reads it. An update costs a few assignments per item and
nothing per step. Supervision may run in a separate thread, because a stage may block the event loop. Main collects the
times to find the run's bottleneck.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any


class Activity:
    """The current work of one stage.

    Attributes:
        stage: the stage's name.
        operation: describes the stage's current work, such as `on item 3: TrajectoryBatch of …`; None while the stage
            waits for an item.
        operations: number of operations started.
        waiting: true while the stage waits for space in its output queue.
        passed: number of results passed on.
        progress: the stage's `progress` method.
        results: the asynchronous generator that yields the stage's results; None if there is none.
        task: the task that runs the stage.
    """

    def __init__(self) -> None:
        self.stage = ""
        self.operation: Callable[[], str] | None = None
        self.operations = 0
        self.waiting = False
        self.passed = 0
        self.progress: Callable[[], int | None] = lambda: 0
        self.results: object = None
        self.task: asyncio.Task[Any] | None = None
        self._seen: tuple[int, int, int] | None = None
        self._since = 0.0

    @contextmanager
    def running(self, stage: str, progress: Callable[[], int | None]) -> Iterator[None]:
        """Register the stage under its task while it runs."""
        self.stage, self.progress, self.task = stage, progress, asyncio.current_task()
        assert self.task is not None, "a stage runs in a task"
        outer = _RUNNING.get(self.task)
        _RUNNING[self.task] = self
        try:
            yield
        finally:
            del _RUNNING[self.task]
            if outer is not None:
                _RUNNING[self.task] = outer

    def silent_s(self, now_s: float) -> float:
        """Return how many seconds ago the current work last made progress.

        Return 0 while the stage is idle or during a legitimate wait. Supervision calls this about once a second; each
        call compares the counters with those at the previous call.
        """
        progress = None if self.operation is None or self.waiting else self.progress()
        seen = None if progress is None else (self.operations, self.passed, progress)
        if seen is None or seen != self._seen:
            self._seen, self._since = seen, now_s
        return now_s - self._since

    def begin_anew(self) -> None:
        """Restart the count of silent seconds at the next call to `silent_s`."""
        self._seen = None

    def describe(self) -> str:
        """Name the stage and its current work."""
        operation = self.operation
        return f"stage {self.stage}" if operation is None else f"stage {self.stage} {operation()}"

    def frames(self) -> list[FrameType]:
        """Return the stack frames at which the stage's task is suspended, innermost last."""
        return [*_awaiting(self.task.get_coro() if self.task is not None else None), *_awaiting(self.results)]


_RUNNING: dict[asyncio.Task[Any], Activity] = {}


def _nobody(begins: bool) -> None:
    """Do nothing."""


PREPARES: ContextVar[Callable[[bool], None]] = ContextVar("the callback for a host's preparations")
"""Callback that is called with True when a host begins preparations, and with False when they are done."""


@contextmanager
def preparing() -> Iterator[None]:
    """Report that the process itself is busy, for example importing torch, so its stages don't count as silent.

    The work may block the event loop, because the callback is called before the work starts.
    """
    tell = PREPARES.get(_nobody)
    token = PREPARES.set(_nobody)  # nested blocks do not report again
    tell(True)
    try:
        yield
    finally:
        PREPARES.reset(token)
        for activity in activities():  # the work blocked all stages of this process
            activity.begin_anew()
        tell(False)


def activity_in(task: asyncio.Task[Any] | None) -> Activity | None:
    """Return the activity of the stage that a task runs, or None if it runs no stage."""
    return _RUNNING.get(task) if task is not None else None


def activities() -> list[Activity]:
    """Return the activities of all stages running in this process."""
    return list(_RUNNING.values())


def most_silent(among: list[Activity], now_s: float) -> Activity | None:
    """Return the activity that has been silent longest, or None if all are making progress."""
    longest = max(among, key=lambda activity: activity.silent_s(now_s), default=None)
    return longest if longest is not None and longest.silent_s(now_s) > 0 else None


def _awaiting(waiter: object) -> list[FrameType]:
    """Return the frames in a chain of awaits: coroutines, async generators, and generators used as awaitables."""
    frames = []
    while waiter is not None:
        kind = next((kind for kind in ("cr", "ag", "gi") if hasattr(waiter, f"{kind}_frame")), None)
        if kind is None:
            break
        frame = getattr(waiter, f"{kind}_frame")
        if frame is not None:
            frames.append(frame)
        waiter = getattr(waiter, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
    return frames


ACTING = "acting"
"""Name of the timer that measures how long policies take to decide, once per tick."""
ASKING = "asking"
"""Name of the timer that measures how long an actor waits for decisions from another process."""
STEPPING = "stepping"
"""Name of the timer that measures how long the environments take in each tick, including time spent waiting for
them."""
LEARNING = "learning"
"""Name of the timer that measures how long a trainer's updates take."""
RECORDING = "recording"
"""Name of the timer that measures how long the recorder takes to write an edge's items to a stream."""
COMPUTING = "computing"
"""Name of the timer that measures how long the event loop's thread occupies a core, whatever the work."""
PUBLISHING = "publishing"
"""Name of the timer that measures how long the publisher takes to send policies to the actors."""
RESTING = "resting"
"""Name of the timer that measures how long an actor is blocked, for any reason."""
WAITING = "waiting"
"""Name of the timer that measures how long an actor waits for learners. For a single learner, a slash and the behaviour
name are appended."""
WORKING = "working"
"""Prefix of the timer that measures how long a stage spends handling or producing items; a slash and the stage's name
are appended."""
BLOCKED = "blocked"
"""Prefix of the timer that measures how long a stage waits for space or a reply; a slash and the stage's name are
appended."""


class Timings:
    """Sums the time spent on each kind of work since the last `drain`.

    Args:
        clock: returns this process's time in seconds; None for `time.perf_counter`.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._seconds: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._lasting: dict[str, float] = {}
        """Maps a kind of work in progress to the start of the part that `drain` has not collected yet."""
        self._clock = clock or time.perf_counter
        self._drained = self._clock()

    def add(self, name: str, seconds: float) -> None:
        """Add the duration of a piece of work."""
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        self._counts[name] = self._counts.get(name, 0) + 1

    @contextmanager
    def lasting(self, *names: str) -> Iterator[None]:
        """Measure the time spent within the context.

        `drain` may collect a part of that time early; the count increases when the context exits.
        """
        self._lasting.update(dict.fromkeys(names, self._clock()))
        try:
            yield
        finally:
            now = self._clock()
            for name in names:
                self.add(name, now - self._lasting.pop(name))

    def drain(self) -> tuple[Mapping[str, tuple[float, int]], float]:
        """Return the time and count of each kind of work and the period's length, then start a new period."""
        now = self._clock()
        for name, since in self._lasting.items():
            self._seconds[name] = self._seconds.get(name, 0.0) + now - since
            self._lasting[name] = now
        drained = {name: (seconds, self._counts.get(name, 0)) for name, seconds in self._seconds.items()}
        self._seconds.clear()
        self._counts.clear()
        span_s, self._drained = now - self._drained, now
        return drained, span_s

"""Finds, from any thread, code that blocks an event loop or never finishes an await; also watches main's event loop.

The watch runs in a thread. It names the code that blocks main's event loop, and interrupts that code after a time
limit.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from headrace.config.pipeline import PAUSE_S, STARTING_FACTOR, MainSilence
from headrace.pipeline.common.global_state_guard import put_back
from headrace.stages.activity import activities, activity_in, most_silent
from headrace.stages.errors import innermost_of_user

MOST_CALLS = 12
"""Maximum number of stack frames in a message, counted from the innermost."""
_BELOW = (str(Path("stages") / "loop.py"), str(Path("asyncio") / "events.py"))
"""File name suffixes of the modules whose loops run stages and callbacks; messages show only frames that are called
from these modules.
"""


def describe_holder(loop: asyncio.AbstractEventLoop | None, thread: int) -> str:
    """Describe what an event loop's thread is doing, with its stack.

    Args:
        loop: the event loop; None if the thread has none yet.
        thread: the thread's `ident`.
    """
    task = asyncio.current_task(loop) if loop is not None else None
    silent = most_silent(activities(), time.monotonic()) if task is None else None
    if silent is not None:
        return f"{silent.describe()} is waiting\n{_stack(silent.frames())}"
    calls = _calls(sys._current_frames().get(thread))
    activity = activity_in(task)
    return f"{activity.describe() if activity is not None else _caller(calls)}\n{_stack(calls)}"


def own_frames(lines: Sequence[str]) -> list[str]:
    """Return the stack lines that belong to the code called by a stage's loop or by the event loop, innermost last."""
    last = max((i for i, line in enumerate(lines) if any(below in line for below in _BELOW)), default=-1)
    return list(lines[last + 1 :][-MOST_CALLS:] or lines[-MOST_CALLS:])


def _caller(calls: Sequence[FrameType]) -> str:
    """Name the owner of code that runs outside a stage: a statistics writer, a callback, or Headrace."""
    below = next((i for i, call in enumerate(reversed(calls)) if call.f_code.co_filename.endswith(_BELOW)), len(calls))
    code = traceback.StackSummary.extract((call, call.f_lineno) for call in calls[len(calls) - below :])
    user = innermost_of_user(code)
    return "Headrace itself" if user is None else f"{user.name} of {user.filename}"


def _calls(frame: FrameType | None) -> list[FrameType]:
    calls = []
    while frame is not None:
        calls.append(frame)
        frame = frame.f_back
    return calls[::-1]


def _stack(frames: Iterable[FrameType]) -> str:
    summary = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames)
    return "".join(own_frames(summary.format())).rstrip()


log = logging.getLogger(__name__)

CHECK_EVERY_S = 1.0
"""Seconds between checks of the event loop."""
YIELD_S = 10.0
"""Seconds to wait, after an interruption, for the code to release the event loop; a C call may take longer."""
_BREAK = getattr(signal, "SIGURG", None)
"""Signal that interrupts a sleep or system call in the main thread, and has no effect without a handler.
None if the platform lacks it.
"""


class Interrupted(KeyboardInterrupt):
    """Raised inside code that has blocked main's event loop for too long. Do not catch it."""


class LoopWatch:
    """Watches the running event loop. Enter the context in the thread that runs the loop.

    Args:
        limits: the settings in `pipeline.supervision.main`.
        give_up: called in the watching thread with a message if the code that blocks the event loop can't be
            interrupted. If None, the watch logs an error and tries again.
        check_every_s: see `CHECK_EVERY_S`.
        yield_s: see `YIELD_S`.
    """

    def __init__(
        self,
        limits: MainSilence,
        give_up: Callable[[str], None] | None = None,
        check_every_s: float = CHECK_EVERY_S,
        yield_s: float = YIELD_S,
    ) -> None:
        self._limits = limits
        self._check_every_s = check_every_s
        self._yield_s = yield_s
        self._give_up = give_up
        self._over = threading.Event()
        self._answered = threading.Event()
        self._error: BaseException | None = None
        self._previous: Any = None

    def __enter__(self) -> LoopWatch:
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._breaks = _BREAK is not None and threading.current_thread() is threading.main_thread()
        if self._breaks:
            assert _BREAK is not None
            self._previous = signal.signal(_BREAK, self._raise)
            signal.siginterrupt(_BREAK, True)
        self._thread = threading.Thread(target=self._watch, name="watch of main's event loop", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._breaks:
            assert _BREAK is not None
            signal.signal(_BREAK, self._previous)

    def describe(self) -> str:
        """Name the code that blocks the event loop, with its stack. Any thread may call this."""
        return describe_holder(self._loop, self._watched)

    def interrupt(self, error: BaseException) -> None:
        """Raise an error in the code that blocks the event loop. Call this from a different thread."""
        self._error = error
        if self._breaks:
            assert _BREAK is not None
            signal.pthread_kill(self._watched, _BREAK)
        else:  # elsewhere Python can't interrupt blocking calls
            thread, kind = ctypes.c_ulong(self._watched), ctypes.py_object(type(error))
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, kind)

    def _raise(self, *_: object) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _watch(self) -> None:
        since = checked = time.monotonic()
        asked, warned, interrupted_at = False, False, 0.0
        while True:
            if not asked:
                self._answered.clear()
                self._loop.call_soon_threadsafe(self._answer)
                asked = True
            if self._over.wait(self._check_every_s):
                break
            now = time.monotonic()
            if now - checked > PAUSE_S:
                since += now - checked
            checked = now
            if self._answered.is_set():
                since, asked, warned, interrupted_at = now, False, False, 0.0
                continue
            in_stage = activity_in(asyncio.current_task(self._loop)) is not None
            held, factor = now - since, 1 if in_stage else STARTING_FACTOR
            if interrupted_at:
                if now - interrupted_at > self._yield_s:
                    self._insist(held)
                    interrupted_at = now
            elif self._limits.end_s is not None and held > self._limits.end_s * factor:
                interrupted_at = now
                words = f"The main process has been silent for {held:.0f} s (pipeline.supervision.main.end_s)"
                log.error("%s: %s\nInterrupting it.", words, self.describe())
                self.interrupt(Interrupted(words))
            elif held > self._limits.warn_s * factor and not warned:
                warned = True
                key = "pipeline.supervision.main.warn_s"
                log.warning("The main process has been silent for %.0f s (%s): %s", held, key, self.describe())

    def _answer(self) -> None:
        self._answered.set()
        put_back()

    def _insist(self, held: float) -> None:
        """Handle an interruption that had no effect on the code that blocks the event loop."""
        words = (
            f"The main process has been silent for {held:.0f} s (pipeline.supervision.main.end_s), and can't be "
            f"interrupted: {self.describe()}"
        )
        if self._give_up is not None:
            self._give_up(words)
        log.error("%s", words)
        self.interrupt(Interrupted(words))

"""Who holds an event loop, or awaits for ever in it: in words and with the stack, asked from any thread."""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType

from headrace.stages.activity import activities, activity_in, most_silent
from headrace.stages.error_text import innermost_of_user

MOST_CALLS = 12
"""Calls of a stack in a message: the innermost."""
_BELOW = (str(Path("stages") / "loop.py"), str(Path("asyncio") / "events.py"))
"""Files of which the last call in a stack is followed by what matters: a stage's own calls, or the event loop's."""


def stage_holds(loop: asyncio.AbstractEventLoop) -> bool:
    """Return True if what runs in an event loop now is a stage; from any thread."""
    return activity_in(asyncio.current_task(loop)) is not None


def describe_holder(loop: asyncio.AbstractEventLoop | None, thread: int) -> str:
    """Describe what a thread, which runs this event loop, is doing, with its stack.

    Args:
        loop: the event loop; None if there is none yet.
        thread: the thread's `ident`.
    """
    task = asyncio.current_task(loop) if loop is not None else None
    silent = most_silent(activities(), time.monotonic()) if task is None else None
    if silent is not None:
        return f"{silent.describe()} waits\n{_stack(silent.frames())}"
    calls = _calls(sys._current_frames().get(thread))
    activity = activity_in(task)
    return f"{activity.describe() if activity is not None else _caller(calls)}\n{_stack(calls)}"


def own_frames(lines: Sequence[str]) -> list[str]:
    """Of the lines of a stack, the innermost last, those that belong to the code that a stage or callback runs."""
    last = max((i for i, line in enumerate(lines) if any(below in line for below in _BELOW)), default=-1)
    return list(lines[last + 1 :][-MOST_CALLS:] or lines[-MOST_CALLS:])


def _caller(calls: Sequence[FrameType]) -> str:
    """Whose code runs where no stage does: a statistics writer's or a callback's, or ours."""
    below = next((i for i, call in enumerate(reversed(calls)) if call.f_code.co_filename.endswith(_BELOW)), len(calls))
    own = traceback.StackSummary.extract((call, call.f_lineno) for call in calls[len(calls) - below :])
    user = innermost_of_user(own)
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

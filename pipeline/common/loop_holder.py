"""Who holds an event loop, or awaits for ever in it: in words and with the stack, asked from any thread."""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import FrameType

from stages.activity import activities, activity_in, most_silent

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
    activity = activity_in(task)
    name = activity.describe() if activity is not None else "Headrace itself"
    return f"{name}\n{_stack(_calls(sys._current_frames().get(thread)))}"


def own_frames(lines: Sequence[str]) -> list[str]:
    """Of the lines of a stack, the innermost last, those that belong to the code that a stage or callback runs."""
    last = max((i for i, line in enumerate(lines) if any(below in line for below in _BELOW)), default=-1)
    return list(lines[last + 1 :][-MOST_CALLS:] or lines[-MOST_CALLS:])


def _calls(frame: FrameType | None) -> list[FrameType]:
    calls = []
    while frame is not None:
        calls.append(frame)
        frame = frame.f_back
    return calls[::-1]


def _stack(frames: Iterable[FrameType]) -> str:
    summary = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames)
    return "".join(own_frames(summary.format())).rstrip()

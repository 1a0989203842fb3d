"""Descriptions of errors raised by code that is not ours: one sentence, with the line of the user's own file.

The whole traceback is for `--debug`.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from traceback import FrameSummary

from headrace.place import CODE

_LIBRARIES = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "purelib", "platlib"))


def describe_error(error: BaseException) -> str:
    """Describe an error and its place: `ZeroDivisionError: in my step (at /home/me/duel.py:24, in step)`.

    The place is that of `user_frame`; an error without one is described without a place.
    """
    frame = user_frame(error)
    place = "" if frame is None else f" (at {frame.filename}:{frame.lineno}, in {frame.name})"
    return error_summary(error) + place


def error_summary(error: BaseException) -> str:
    """The error's class and its message, if it has one: `ZeroDivisionError: in my step`."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def user_frame(error: BaseException) -> FrameSummary | None:
    """The innermost call in a file that is neither ours nor a library's; None if there is none."""
    return innermost_of_user(frames(error))


def innermost_of_user(calls: Iterable[FrameSummary]) -> FrameSummary | None:
    """The last of these calls in a file that is neither ours nor a library's; None if there is none."""
    users = [call for call in calls if not call.filename.startswith((*CODE, *_LIBRARIES, "<"))]
    return users[-1] if users else None


def frames(error: BaseException) -> list[FrameSummary]:
    """The calls that led to the error, the innermost last, without ours and those that lie in no file."""
    calls = traceback.extract_tb(error.__traceback__)
    return [call for call in calls if not call.filename.startswith((*CODE, "<"))]


def raised_in_user_code(error: BaseException) -> bool:
    """True if the error, or one of its causes, was raised below code of the user's own: then a traceback helps."""
    return any(user_frame(each) is not None for each in _with_causes(error))


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__

"""How messages tell of what code that is not ours has raised: in one sentence, with the line of the user's own file.

The whole traceback is for `--debug`.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from traceback import FrameSummary

_ROOT = Path(__file__).parents[1]
_OURS = tuple(str(_ROOT / package / "_")[:-1] for package in ("config", "queues", "stages", "pipeline"))
_LIBRARIES = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "purelib", "platlib"))


def describe_error(error: BaseException) -> str:
    """What was raised, and where: `ZeroDivisionError: in my step (at /home/me/duel.py:24, in step)`.

    The place is the innermost one in a file that is neither ours nor a library's; without such a file there is none.
    """
    frame = user_frame(error)
    return (
        error_summary(error)
        if frame is None
        else f"{error_summary(error)} (at {frame.filename}:{frame.lineno}, in {frame.name})"
    )


def error_summary(error: BaseException) -> str:
    """What was raised, with its message if it has one: `ZeroDivisionError: in my step`."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def user_frame(error: BaseException) -> FrameSummary | None:
    """The innermost call in a file that is neither ours nor a library's; None if there is none."""
    users = [frame for frame in frames(error) if not frame.filename.startswith(_LIBRARIES)]
    return users[-1] if users else None


def frames(error: BaseException) -> list[FrameSummary]:
    """The calls that led to it, the innermost last, without ours and those that lie in no file."""
    calls = traceback.extract_tb(error.__traceback__)
    return [call for call in calls if not call.filename.startswith((*_OURS, "<"))]


def raised_in_user_code(error: BaseException) -> bool:
    """Whether it, or what led to it, was raised below code of the user's own: then a traceback says more."""
    return any(user_frame(each) is not None for each in _with_causes(error))


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__

"""The errors of `stages` that callers distinguish, and descriptions of errors from code outside Headrace.

A description is one sentence that includes the line in the user's own file; `--debug` shows the entire traceback.
"""

from __future__ import annotations

import asyncio
import math
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from traceback import FrameSummary
from typing import TYPE_CHECKING, Any, TypeGuard

from headrace.paths import CODE
from headrace.startup_context import shortened

if TYPE_CHECKING:  # at run time this would import all of `config`
    from headrace.config.errors import KeyPath

Who = Callable[[int | None], str]
"""Function that returns the start of an error message about a row, with environment, instance and agent.

None instead of a row stands for all rows together.
"""


class StageError(Exception):
    """A stage could not do its work; the message names the object and the reason.

    Args:
        message: the error's text.
        key: the YAML key at fault, if any; a caller that knows the file prefixes the message with the key's location.
    """

    def __init__(self, message: object = "", key: KeyPath = ()) -> None:
        super().__init__(message)
        self.key = key


class BrokenEnvironmentError(StageError):
    """An environment broke its contract, crashed or hung; the message names it."""


class EnvironmentEnded(Exception):
    """An environment has ended normally, so the run ends too; the message gives the reason."""


class NotFiniteError(StageError):
    """A NaN or infinity in a loss, reward, observation or action; the message names behaviour, agent and step."""


class LoadError(StageError):
    """A `module:attribute` named in the YAML can't be imported, or is not of the expected kind."""


@contextmanager
def blaming(*key: str | int) -> Iterator[None]:
    """Set the key of errors raised within the context, unless they already have one."""
    try:
        yield
    except StageError as error:
        error.key = error.key or key
        raise


def is_failure(error: BaseException | None) -> TypeGuard[BaseException]:
    """Return True for exceptions that code should not raise: any error, and exits that were not requested.

    An error need not be an `Exception`: a Rust panic is not. A cancelled task is meant to end, and so is a coroutine
    that is closed outside any task.
    """
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        try:
            task = asyncio.current_task()
        except RuntimeError:  # no event loop is running
            return False
        return task is not None and not task.cancelling()
    return error is not None


_LIBRARIES = tuple(sysconfig.get_paths()[key] for key in ("stdlib", "purelib", "platlib"))
_PACKAGES = _LIBRARIES[1:]
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
"""Path pattern of installed packages, including those of another Python that a virtual environment may see."""
_PLUMBING = re.compile(
    _INSTALLED.pattern + r"(?:numpy|gymnasium|pettingzoo[/\\]utils|jax|pandas|scipy|supersuit|torch)[/\\]"
)
"""Path pattern of libraries for making environments, whose lines are less helpful than the environment's own."""


def describe_error(error: BaseException) -> str:
    """Describe an error and where it occurred: `ZeroDivisionError: in my step (at /home/me/duel.py:24, in step)`.

    The location is that of `user_frame`; if there is none, the description contains no location.
    """
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration):
        error = error.__cause__  # Python replaces the one that leaves a coroutine or a generator
    return _with_place(error, user_frame(error))


def describe_fault(error: BaseException) -> str:
    """Describe an environment's or a module's error as `describe_error` does, or with the line in a package."""
    if user_frame(error) is not None:
        return describe_error(error)
    # Gymnasium reraises a constructor's TypeError from its own line, so the error's causes are considered too.
    calls = [[call for call in frames(cause) if _is_of_package(call)] for cause in _with_causes(error)]
    package_calls = [
        call for calls_of_cause in calls for call in calls_of_cause[::-1] if not _PLUMBING.search(call.filename)
    ]
    return _with_place(error, next(iter([*package_calls, *calls[0][::-1]]), None))


def _with_place(error: BaseException, call: FrameSummary | None) -> str:
    """Describe an error and a call's location. If the error has no text, as in a bare assert, add the source line."""
    if call is None:
        return error_summary(error)
    line = "" if str(error) or not call.line or call.line.startswith("raise") else f": {call.line}"
    return f"{error_summary(error)} (at {call.filename}:{call.lineno}, in {call.name}{line})"


def _is_of_package(call: FrameSummary) -> bool:
    return call.filename.startswith(_PACKAGES) or _INSTALLED.search(call.filename) is not None


def _is_of_zipped_library(call: FrameSummary) -> bool:
    """Return True if a call is in a standard library that is a zip file, as in Python's embeddable Windows package."""
    path = PurePath(call.filename)
    return not path.is_absolute() and path.parts[0] in sys.stdlib_module_names


def type_of(value: object) -> str:
    """Return a value's type with its article: `a list`, `an Env`."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"


def error_summary(error: BaseException) -> str:
    """Return an error's class and its message, if any: `ZeroDivisionError: in my step`."""
    text = shortened(str(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def user_frame(error: BaseException) -> FrameSummary | None:
    """Return the innermost call in a file that is neither Headrace's nor a library's, or None if there is none."""
    return innermost_of_user(frames(error))


def innermost_of_user(calls: Iterable[FrameSummary]) -> FrameSummary | None:
    """Return the last of these calls in a file that is neither Headrace's nor a library's; None if there is none."""
    foreign = [call for call in calls if not call.filename.startswith((*CODE, *_LIBRARIES, "<"))]
    users = [call for call in foreign if not (_is_of_package(call) or _is_of_zipped_library(call))]
    return users[-1] if users else None


def frames(error: BaseException) -> list[FrameSummary]:
    """Return the calls that led to an error, innermost last, without calls inside Headrace or outside files."""
    calls = traceback.extract_tb(error.__traceback__)
    return [call for call in calls if not call.filename.startswith((*CODE, "<"))]


def raised_in_user_code(error: BaseException) -> bool:
    """Return True if a user's code, or code that it called, raised the error or a cause, so a traceback is useful."""
    return any(user_frame(cause) is not None for cause in _with_causes(error))


def _with_causes(error: BaseException) -> Iterable[BaseException]:
    """Return an error and its causes, each only once, because an error raised `from` itself is its own cause."""
    causes = dict[int, BaseException]()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in causes:
        causes[id(cause)] = cause
        cause = cause.__cause__
    return causes.values()


def number(value: Any) -> float:
    """Convert a number of any type, or a one-element array. A number beyond float64 becomes the largest float64."""
    item = value.item() if hasattr(value, "item") else value
    try:
        converted = float(item)
    except OverflowError:
        converted = math.inf
    if math.isinf(converted) and item != converted:
        return math.copysign(sys.float_info.max, 1 if item > 0 else -1)
    return converted


def unfit_number(value: Any) -> str:
    """Return a number that float32 can't hold, followed by the reason."""
    converted = number(value)
    if not math.isfinite(converted):
        return f"{converted}; expected a finite number; look for a division by zero or an overflow"
    beyond = " or beyond" if abs(converted) == sys.float_info.max else ""
    return f"{converted:.6g}{beyond}, which is too large for float32"

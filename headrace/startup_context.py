"""The working directory and environment variables at the start of a run, which apply to the entire run.

User code may change both at any time, for the entire process. Relative paths are therefore resolved against the initial
directory, and programs are started with that directory and the initial variables. Like `paths`, this module imports
nothing from `config`, `queues`, `stages` or `pipeline`.
"""

from __future__ import annotations

import functools
import itertools
import os
import socket
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from headrace.paths import CODE

_LIBRARY = os.path.dirname(threading.__file__)
_THREADS = (threading.__file__, os.path.join(_LIBRARY, "concurrent", ""))
_LOOPS = os.path.join(_LIBRARY, "asyncio", "")  # not imported, because the command's first steps do not need it
_NEVER_RETURNS = os.path.join("multiprocessing", "popen_fork.py")


@functools.cache
def confine_forks() -> None:
    """From now on, end each process that user code forks when that code returns."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_confine)


def _confine() -> None:
    """End a forked child when user code returns to the innermost Headrace function that called it."""
    forking = sys._getframe(1)
    calls = [call for call, _ in traceback.walk_stack(forking)]
    ours = any(_lies_in(call, CODE) for call in calls)
    ends = (*CODE, *_THREADS, *((_LOOPS,) if ours else ()))
    inside = list(itertools.takewhile(lambda call: not _lies_in(call, ends), calls))
    if len(inside) == len(calls) or any(call.f_code.co_filename.endswith(_NEVER_RETURNS) for call in inside):
        return
    boundary = calls[len(inside)]
    where = f"{forking.f_code.co_filename}:{forking.f_lineno}"
    boundary.f_trace_opcodes = True  # even if that function resumes on the same line
    boundary.f_trace = functools.partial(_end, where)
    sys.settrace(lambda *_: None)  # do not trace functions called from now on


def _lies_in(call: FrameType, folders: tuple[str, ...]) -> bool:
    return call.f_code.co_filename.startswith(folders)


def _end(where: str, frame: FrameType, event: str, arg: Any) -> None:
    """End this process as Python would at the end of a script, but without running exit handlers."""
    sys.settrace(None)
    status, message = 1, ""
    with suppress(Exception):
        # StopIteration and StopAsyncIteration mark the return of a generator or coroutine.
        if event != "exception" or issubclass(arg[0], StopIteration | StopAsyncIteration):
            status = 0
            message = (
                f"[WARNING] Process {os.getpid()}, forked at {where}, returned from the code that forked it, so "
                "Headrace ended it: end forked processes with os._exit().\n"
            )
        elif isinstance(arg[1], SystemExit) and isinstance(arg[1].code, int | None):
            status = arg[1].code or 0
        else:
            message = f"[ERROR] Process {os.getpid()}, forked at {where}, raised:\n" + "".join(
                traceback.format_exception(*arg)
            )
        os.write(2, shortened(message).encode(errors="backslashreplace"))  # `sys.stderr` may be any object by now
        sys.stdout.flush()
    os._exit(status)


@dataclass(frozen=True, slots=True)
class StartupContext:
    """The working directory and variables at the start of a process, or at the start of a run in the process."""

    folder: str
    """The absolute working directory; empty if it was removed."""
    variables: Mapping[str, str]


_kept: StartupContext | None = None


def startup_context() -> StartupContext:
    """Return the context kept by this module, or the current directory and variables if none are kept."""
    if _kept is not None:
        return _kept
    try:
        folder = os.getcwd()
    except OSError:
        folder = ""
    return StartupContext(folder, dict(os.environ))


def keep_startup_context() -> None:
    """Keep the current context until this process ends, unless some are already kept.

    Call this before user code.
    """
    global _kept
    _kept = startup_context()
    confine_forks()


def keep_variable(name: str, value: str) -> None:
    """Set a variable for this process and for the programs that it starts."""
    global _kept
    os.environ[name] = value
    if _kept is not None:
        _kept = StartupContext(_kept.folder, {**_kept.variables, name: value})


@contextmanager
def kept_startup_context() -> Iterator[None]:
    """Keep the current context within the context, unless some are already kept."""
    global _kept
    before = _kept
    keep_startup_context()
    try:
        yield
    finally:
        _kept = before


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected blocking sockets, even if `socket.setdefaulttimeout` was called.

    With a default timeout, a child would inherit a non-blocking socket, and a thread that waits on it would time out.
    """
    pair = socket.socketpair()
    for connected in pair:
        connected.setblocking(True)
    return pair


def absolute(path: str | os.PathLike[str]) -> Path:
    """Return an absolute path; relative paths are resolved against the directory in which the run started."""
    return Path(startup_context().folder, path)


_END = 4_000
"""Number of characters that remain at each end of a long message."""


def shortened(message: str) -> str:
    """Return a message as it crosses a boundary: to another process, a log, the terminal, or a client of a server.

    Of a long message, such as an error that prints its input, both ends and the number of other characters remain.
    """
    rest = len(message) - 2 * _END
    return message if rest <= 0 else f"{message[:_END]} … ({rest:,} characters left out) … {message[-_END:]}"


def shown(path: str | os.PathLike[str]) -> str:
    """Return a path relative to the folder in which the run started, if the path is inside that folder."""
    try:
        return str(Path(path).relative_to(startup_context().folder))
    except ValueError:
        return str(path)

"""Standard input, output and error of every process of ours: always open, and writing to them never raises for a text.

Characters that a stream's encoding lacks are written in ASCII: typographic ones by a likeness (`->`), others as Python
escapes them.
"""

from __future__ import annotations

import codecs
import errno
import logging
import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any, ParamSpec, TextIO

from headrace.pipeline.common.process import describe_limit
from headrace.surroundings import kept_surroundings

P = ParamSpec("P")

_ALIKE = {"→": "->", "←": "<-", "↔": "<->", "×": "x", "–": "-", "—": "-", "−": "-", "…": "...", "·": "*", "≈": "~"}
_ALIKE |= {"≤": "<=", "≥": ">=", "≠": "!=", "±": "+-", "’": "'", "‘": "'", "“": '"', "”": '"', "\u00a0": " "}
"""Typographic signs and what is written where they can't be."""
_ERRORS = "headrace.alike"


_own: dict[str, Any] = {}
"""The prepared streams of a command, by name, while it runs."""


def own_stream(name: str) -> Any:
    """Return `stdout` or `stderr` as the command began with it, whatever code of users has put in its place or closed.

    The live table's stands in its place, as lines are to appear above the table.
    """
    present, own = getattr(sys, name), _own.get(name)
    if own is None or type(present).__module__.startswith("rich."):
        return present
    if own.closed:
        number = ("stdin", "stdout", "stderr").index(name)
        own = _own[name] = open(number, "w", encoding="utf-8", errors=_ERRORS, closefd=False)  # noqa: SIM115
    return own


def prepare_output(platform: str = sys.platform) -> None:
    """Let this process write any text to its standard streams, whatever its terminal, pipe or file is.

    A stream that is closed (`>&-`, `pythonw`) becomes one that takes everything and gives nothing. On Windows what is
    redirected to a file is UTF-8, as editors and programs read it, unless the user has set an encoding.
    """
    codecs.register_error(_ERRORS, _alike)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, _nothing(number))
        elif number:
            setattr(sys, name, _printing_all(stream, platform))


def speaking(main: Callable[P, int]) -> Callable[P, int]:
    """Prepare streams and surroundings for a command's function.

    Its status stays its own where nobody reads its output any more. It is 0 if the function was interrupted by that,
    and 1 if standard output can't be written for another reason.
    """

    @wraps(main)
    def command(*args: P.args, **kwargs: P.kwargs) -> int:
        prepare_output()
        _own.update(stdout=sys.stdout, stderr=sys.stderr)
        try:
            return _spoken(lambda: main(*args, **kwargs))
        finally:
            _own.clear()

    return command


def _spoken(main: Callable[[], int]) -> int:
    status, failed = 0, None
    try:
        with kept_surroundings():
            status = main()
    except OSError as error:
        failed = error
    if failed is not None and failed.errno in (errno.EMFILE, errno.ENFILE):
        complain(f"[ERROR] {failed.strerror}: {describe_limit()}")
        return 1
    trouble = _trouble_of_output("" if failed is None else "\n")
    if failed is not None and trouble is None:
        raise failed
    if trouble is not None:
        close_output()
        if not _has_no_reader(trouble):
            complain(f"[ERROR] standard output can't be written: {trouble.strerror}")
            return status or 1
    return status


def _trouble_of_output(text: str) -> OSError | None:
    """Write the rest of standard output and a text; return the error that this meets."""
    try:
        _write("stdout", text)
    except OSError as error:
        return error
    return None


def _write(name: str, text: str) -> None:
    stream = own_stream(name)
    stream.write(text)
    stream.flush()


def say(text: object) -> None:
    """Write a line to standard output.

    Raises:
        OSError: if it can't be written.
    """
    _write("stdout", f"{text}\n")


def complain(text: object) -> None:
    """Write a line to standard error; the line is lost, without an error, where standard error has no reader."""
    with suppress(OSError):
        _write("stderr", f"{text}\n")


def tell_user(text: str) -> None:
    """Write a line to standard output and nowhere else: what no log may hold; lost where that has no reader."""
    with suppress(OSError):
        say(text)


class EveryRecord(logging.Formatter):
    """Formats any record of a log; one whose arguments don't fit its text is written with what is wrong."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        try:
            text = super().format(record)
        except Exception as error:
            where = f"{record.pathname}:{record.lineno}"
            text = f"{record.msg!r} can't be logged with {record.args!r} (at {where}): {type(error).__name__}: {error}"
        return text.encode(errors="backslashreplace").decode()  # what is no UTF-8, as of a file's name


def close_output() -> None:
    """Let nobody stumble over what could not be written to standard output, at the exit neither."""
    with suppress(OSError, ValueError):  # a stream of an IDE or a notebook has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), own_stream("stdout").fileno())


def _has_no_reader(error: OSError) -> bool:
    """True for the error of a write to a pipe whose reader has ended, such as `| head`, or to a closed terminal."""
    if sys.platform == "win32" and error.errno == errno.EINVAL:  # as its C library says it
        return error.winerror is None and error.filename is None
    return isinstance(error, BrokenPipeError) or (error.errno == errno.EIO and _is(stat.S_ISCHR, sys.stdout))


def _nothing(number: int) -> TextIO:
    """Open the null device for a standard stream, by its own descriptor: no file or socket may come to have that."""
    with suppress(OSError):
        os.fstat(number)
        number = -1  # somebody else has it
    descriptor = os.open(os.devnull, os.O_RDWR)
    if number not in (-1, descriptor):
        os.dup2(descriptor, number)
        os.close(descriptor)
        descriptor = number
    os.set_inheritable(descriptor, number >= 0)
    return open(descriptor, "r" if number == 0 else "w", encoding="utf-8", errors=_ERRORS, closefd=False)


def _printing_all(stream: Any, platform: str) -> Any:
    encoding = "utf-8" if platform == "win32" and not _encoding_is_chosen() and _is(stat.S_ISREG, stream) else None
    try:
        stream.reconfigure(encoding=encoding, errors=_ERRORS)
    except (AttributeError, OSError, ValueError, TypeError):  # of an IDE, a notebook, a test, or closed
        return stream if isinstance(stream, _PrintsAll) else _PrintsAll(stream)
    return stream


def _encoding_is_chosen() -> bool:
    return bool(os.environ.get("PYTHONIOENCODING")) or bool(sys.flags.utf8_mode)


def _is(kind: Callable[[int], bool], stream: Any) -> bool:
    try:
        return kind(os.fstat(stream.fileno()).st_mode)
    except (AttributeError, OSError, ValueError):
        return False


def _alike(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_ALIKE.get(sign) or sign.encode("ascii", "backslashreplace").decode() for sign in lacking), error.end


class _PrintsAll:
    """A stream that can't be told how to encode: what it refuses is written as it can be."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except UnicodeEncodeError:
            self._stream.write(text.encode("ascii", _ERRORS).decode())
        return len(text)

    def flush(self) -> None:
        getattr(self._stream, "flush", lambda: None)()

    def isatty(self) -> bool:
        return bool(getattr(self._stream, "isatty", lambda: False)())

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

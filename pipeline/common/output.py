"""Standard input, output and error of every Headrace process: always open, and able to write any text.

Characters missing from a stream's encoding are written in ASCII: typographic characters as look-alikes (`->`), all
others as Python escapes.
"""

from __future__ import annotations

import codecs
import errno
import json
import logging
import os
import re
import stat
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import wraps
from typing import Any, ParamSpec, TextIO

from headrace.pipeline.common.process import describe_limit
from headrace.startup_context import kept_startup_context, shortened

P = ParamSpec("P")

_ALIKE = {"→": "->", "←": "<-", "↔": "<->", "×": "x", "–": "-", "—": "-", "−": "-", "…": "...", "·": "*", "≈": "~"}
_ALIKE |= {"≤": "<=", "≥": ">=", "≠": "!=", "±": "+-", "’": "'", "‘": "'", "“": '"', "”": '"', "\u00a0": " "}
"""Typographic characters and their ASCII replacements."""
_ERRORS = "headrace.alike"


_own: dict[str, Any] = {}
"""Streams prepared for the running command, keyed by name, and the formatter `json`; empty if no command is running."""


def own_stream(name: str) -> Any:
    """Return the command's original `stdout` or `stderr`, even if the user's code has replaced or closed that stream.

    While the live table is shown, return the table's stream instead, so that lines appear above the table.
    """
    present, stream = getattr(sys, name), _own.get(name)
    if stream is None or type(present).__module__.startswith("rich."):
        return present
    if stream.closed:
        number = ("stdin", "stdout", "stderr").index(name)
        stream = _own[name] = open(number, "w", encoding="utf-8", errors=_ERRORS, closefd=False)  # noqa: SIM115
    return stream


def prepare_output(platform: str = sys.platform) -> None:
    """Let this process write any text to its standard streams, whether they are a terminal, a pipe or a file.

    A closed stream (`>&-`, `pythonw`) becomes the null device. On Windows, output redirected to a file is UTF-8, as
    editors and programs expect, unless the user has set an encoding.
    """
    codecs.register_error(_ERRORS, _alike)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, _nothing(number))
        elif number:
            chosen = os.environ.get("PYTHONIOENCODING") or sys.flags.utf8_mode
            encoding = "utf-8" if platform == "win32" and not chosen and _is(stat.S_ISREG, stream) else None
            with suppress(AttributeError, OSError, ValueError, TypeError):  # closed, or an IDE's or a test's stream
                stream.reconfigure(encoding=encoding, errors=_ERRORS)


def speaking(main: Callable[P, int]) -> Callable[P, int]:
    """Wrap a command's function: the wrapper prepares the process and its streams, and returns an exit status.

    The status is the one that the function returns, even if standard output has lost its reader. If that loss
    interrupted the function, the status is 0. If standard output can't be written for another reason, the status is at
    least 1.
    """

    @wraps(main)
    def command(*args: P.args, **kwargs: P.kwargs) -> int:
        prepare_output()
        _own.update(stdout=sys.stdout, stderr=sys.stderr)
        status, failure = 0, None
        try:
            try:
                with kept_startup_context():
                    status = main(*args, **kwargs)
            except OSError as error:
                failure = error
            if failure is not None and failure.errno in (errno.EMFILE, errno.ENFILE):
                complain(f"[ERROR] {failure.strerror}: {describe_limit()}")
                return 1
            try:
                _write("stdout", "" if failure is None else "\n")  # fails if it was standard output that failed
            except OSError as error:
                close_output()
                if _has_no_reader(error):
                    return status
                complain(f"[ERROR] can't write to standard output: {error.strerror}")
                return status or 1
            if failure is not None:
                raise failure
            return status
        finally:
            _own.clear()

    return command


def _write(name: str, text: str) -> None:
    stream = own_stream(name)
    stream.write(text)
    stream.flush()


def say(text: object, **fields: object) -> None:
    """Write a line to standard output, or a JSON object with these fields after `set_log_format("json")`.

    Raises:
        OSError: if standard output can't be written.
    """
    _write("stdout", _line(str(text), "INFO", fields))


def complain(text: object) -> None:
    """Write lines to standard error, each shortened. If standard error has no reader, drop them without an error."""
    with suppress(OSError):
        _write("stderr", _line("\n".join(map(shortened, str(text).split("\n"))), "ERROR", {}))


def _line(text: str, level: str, fields: Mapping[str, object]) -> str:
    lines = json_lines()
    if lines is None:
        return f"{text}\n"
    if prefix := re.match(r"\[([A-Z]+)\] |(warning): ", text):
        level, text = (prefix[1] or prefix[2]).upper(), text.replace(prefix[0], "")
    return lines.format(logging.makeLogRecord({"name": "headrace", "levelname": level, "msg": text, **fields})) + "\n"


class JsonLines(logging.Formatter):
    """Formats each log record, shortened, as a JSON object on one line, with the record's `extra` values.

    Attributes:
        fields: keys and values of all lines, such as the run's id.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fields: dict[str, object] = {}

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": shortened(record.getMessage()),
            **self.fields,
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD and key[0] != "_"}
        if record.exc_info:
            line["traceback"] = shortened(self.formatException(record.exc_info))
        return json.dumps(line, default=str)  # ASCII, which every stream can write


_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
"""Attributes of every log record; the others come from `extra`, except for private ones, which Ray adds."""


def set_log_format(name: str) -> None:
    """Make the running command write its log and its messages as `text`, or as `json` lines."""
    _own["json"] = JsonLines() if name == "json" else None


def json_lines() -> JsonLines | None:
    """Return the formatter of the running command's JSON lines; None if the command writes text."""
    return _own.get("json")


class EveryRecord(logging.Formatter):
    """Formats log records so that every stream can write them: shortened, and valid UTF-8, unlike some file names."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        return shortened(super().format(record)).encode(errors="backslashreplace").decode()


def close_output() -> None:
    """Discard buffered output that can't be written, so that flushing it at exit raises no error."""
    with suppress(OSError, ValueError):  # a stream of an IDE or a notebook has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), own_stream("stdout").fileno())


def _has_no_reader(error: OSError) -> bool:
    """Return True if a write failed because the terminal is closed or the pipe's reader has ended, as with `| head`."""
    if sys.platform == "win32" and error.errno == errno.EINVAL:  # the C library's error code for a lost reader
        return error.winerror is None and error.filename is None
    return isinstance(error, BrokenPipeError) or (error.errno == errno.EIO and _is(stat.S_ISCHR, sys.stdout))


def _nothing(number: int) -> TextIO:
    """Open the null device on a standard stream's own descriptor, so that no file or socket can take that number."""
    with suppress(OSError):
        os.fstat(number)
        number = -1  # another file already has this descriptor
    descriptor = os.open(os.devnull, os.O_RDWR)
    if number not in (-1, descriptor):
        os.dup2(descriptor, number)
        os.close(descriptor)
        descriptor = number
    os.set_inheritable(descriptor, number >= 0)
    return open(descriptor, "r" if number == 0 else "w", encoding="utf-8", errors=_ERRORS, closefd=False)


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

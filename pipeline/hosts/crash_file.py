"""A child's crash file: an unnamed file that the child inherits, and that main reads after the child has ended.

A child writes the cause of its end to this file when the control channel can't carry it: the traceback of a failed
start, or the stack of a crash in C. Standard error may be closed or unread.
"""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from typing import IO, Any

from headrace.startup_context import shortened

RAISED = "Traceback (most recent call last)"
"""Text that the file contains if the child has raised an exception."""
_STDERR = 2
"""Descriptor to use if the file can't be created."""


# Standard error may be closed or belong to a service, and a file without a name needs no cleanup (docs/decisions/012).
class CrashFile:
    """Main's handle on a child's crash file."""

    def __init__(self) -> None:
        self.argument = ""
        """Command-line argument from which the child opens the file (`open_crash_file`). It is valid only if the child
        is started with `options`."""
        self.options: dict[str, Any] = {}
        self._file: IO[bytes] | None = None
        with suppress(OSError):
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - open until the child has ended
            self._let_inherit(self._file.fileno())

    def _let_inherit(self, descriptor: int) -> None:
        if sys.platform == "win32":
            import msvcrt

            handle = msvcrt.get_osfhandle(descriptor)
            os.set_handle_inheritable(handle, True)
            self.options = {"startupinfo": subprocess.STARTUPINFO(lpAttributeList={"handle_list": [handle]})}
        else:
            handle = descriptor
            self.options = {"pass_fds": [handle]}
        self.argument = str(handle)

    def read_and_close(self) -> str:
        """Return what the child has written and close the file."""
        file, self._file = self._file, None
        if file is None:
            return ""
        with file:
            file.seek(0)
            return file.read().decode(errors="replace").strip()


def open_crash_file(argument: str) -> int:
    """In a child, return the file's descriptor, and make later crashes in C write their stack to the file."""
    if not argument:
        return _STDERR
    if sys.platform == "win32":
        import msvcrt

        descriptor = msvcrt.open_osfhandle(int(argument), os.O_APPEND)
    else:
        descriptor = int(argument)
    os.set_inheritable(descriptor, False)
    faulthandler.enable(descriptor, all_threads=False)
    return descriptor


def write_crash_file(descriptor: int, words: str) -> None:
    """In a child, write text to the file, or to standard error if that fails."""
    for output in (descriptor, _STDERR):
        with suppress(OSError):
            os.write(output, shortened(words).encode(errors="replace"))
            return

"""Programs that end together with everything they started, using sessions on POSIX and jobs on Windows.

Only Linux can also end processes that have left their session (`pipeline/hosts/sweeper.py`). Like `paths`, this module
imports nothing from `config`, `queues`, `stages` or `pipeline`.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from headrace.startup_context import startup_context

if sys.platform == "win32":
    from headrace.win32 import CREATE_SUSPENDED, Job, resume


class ProcessTree(subprocess.Popen[bytes]):
    """A program and everything that it starts. Ctrl-C in the terminal does not reach these processes.

    The program has its own session, or on Windows its own job and process group. On Windows, the program's processes
    also end with this one.

    Args:
        command: the program and its arguments.
        shows: True if the program writes to this process's console. Otherwise it has no console on Windows, so
            Ctrl-Break and closing the console do not affect it either.
        options: other `Popen` options; working directory and environment default to those at the start of the run.
    """

    def __init__(self, command: Sequence[str], *, shows: bool, **options: Any) -> None:
        began = startup_context()
        options = {"cwd": began.folder if os.path.isdir(began.folder) else None, "env": began.variables, **options}
        if sys.platform == "win32":
            self._job = Job()
            hides = 0 if shows else subprocess.CREATE_NO_WINDOW
            # Suspended until the program is in the job, which would not contain processes that the program started
            # before.
            flags = subprocess.CREATE_NEW_PROCESS_GROUP | CREATE_SUSPENDED | hides
            super().__init__(command, creationflags=flags, **options)
            handle = int(self._handle)  # type: ignore[attr-defined]  # which Popen's own methods use
            self._job.add(handle)
            resume(handle)
        else:
            super().__init__(command, start_new_session=True, **options)

    def kill_all(self) -> None:
        """Kill the program and everything that it started, even if the program itself has already ended."""
        if sys.platform == "win32":
            self._job.end()
            self.kill()  # the program's own job may not permit another job
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


if sys.platform == "win32":
    _own: list[Job] = []


def end_children_with_this_process() -> None:
    """On Windows, ensure that processes started from now on end with this one, however it ends."""
    if sys.platform == "win32" and not _own:
        _own.append(Job())
        _own[0].add()
        atexit.register(end_children)


def end_children() -> None:
    """On Windows, end this process's children before it exits, because Wine's server crashes when a job ends."""
    if sys.platform == "win32" and _own:
        _own.pop().end_others()


_LOWEST = 0x4000_0000
"""Smallest exit status that Windows itself sets. A program's exit status is lower, and on other systems below 256."""
_STATUSES = {
    0x4001_0004: "the system ended it, for example at log-off",
    0x8000_0003: "a breakpoint, for example a failed assertion",
    0xC000_0005: "access violation",
    0xC000_0006: "one of its files could not be read, for example on a disconnected network drive",
    0xC000_0017: "not enough memory",
    0xC000_001D: "illegal instruction: built for a newer processor",
    0xC000_007B: "a program or DLL for a different architecture, such as 32-bit",
    0xC000_0094: "division by zero",
    0xC000_00FD: "stack overflow",
    0xC000_012D: "not enough memory: the paging file is too small",
    0xC000_0135: "a DLL was not found",
    0xC000_0139: "a DLL lacks a function: it has the wrong version",
    0xC000_013A: "Ctrl-C, Ctrl-Break or a closed console",
    0xC000_0142: "a DLL could not be initialised",
    0xC000_0374: "heap corruption",
    0xC000_0409: "it aborted itself: a buffer overrun or another fatal error",
    0xE043_4352: "an unhandled .NET exception",
    0xE06D_7363: "an unhandled C++ exception",
}


def describe_status(status: int) -> str:
    """Format a non-negative exit status for users: Windows' own statuses appear in hexadecimal, with the reason."""
    if status < _LOWEST:
        return str(status)
    meaning = _STATUSES.get(status)
    return f"0x{status:08X}" + (f" ({meaning})" if meaning else "")

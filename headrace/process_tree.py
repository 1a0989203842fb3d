"""Programs that end with all that they have started: POSIX has sessions for this, Windows has jobs.

Linux alone can also end what has left its session (`pipeline/hosts/sweeper.py`). Below all packages, as `place` is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

if sys.platform == "win32":
    from headrace.win32 import CREATE_SUSPENDED, Job, resume


class ProcessTree(subprocess.Popen[bytes]):
    """A program with all that it starts. Ctrl-C in the terminal is not for it.

    It has a session of its own; on Windows a job and a process group of its own, and what is left of it ends with this
    process.

    Args:
        command: the program and its arguments.
        shows: True if it writes to this process's console. On Windows it has none otherwise, so that Ctrl-Break and a
            closed console do not reach it either.
        options: further ones of `Popen`.
    """

    def __init__(self, command: Sequence[str], *, shows: bool, **options: Any) -> None:
        if sys.platform == "win32":
            self._job = Job()
            hides = 0 if shows else subprocess.CREATE_NO_WINDOW
            # Suspended until it is in the job: what it starts before that would not be.
            flags = subprocess.CREATE_NEW_PROCESS_GROUP | CREATE_SUSPENDED | hides
            super().__init__(command, creationflags=flags, **options)
            handle = int(self._handle)  # type: ignore[attr-defined]  # which Popen's own methods use
            self._job.hold(handle)
            resume(handle)
        else:
            super().__init__(command, start_new_session=True, **options)

    def kill_all(self) -> None:
        """Kill the program and what it has started, also after its own end."""
        if sys.platform == "win32":
            self._job.end()
            self.kill()  # it may be in a job that allows no other
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


if sys.platform == "win32":
    _own: list[Job] = []


def end_children_with_this_process() -> None:
    """On Windows: let what this process starts from now on end with it, in whatever way it ends."""
    if sys.platform == "win32" and not _own:
        _own.append(Job())
        _own[0].hold()

"""The lock of a run's folder: one process at a time runs a run, and a dead one's lock is taken over."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from pipeline.common.errors import RunFolderError
from pipeline.run_folder.atomic_files import FileOperations


@dataclass(frozen=True)
class _Holder:
    """The process that a lock file names."""

    pid: int
    host: str
    started: str
    """When the process started, in the system's own terms; empty where it does not say. Pids are used
    again; in a container the next process nearly always has the same one."""

    @classmethod
    def this_process(cls) -> _Holder:
        return cls(os.getpid(), socket.gethostname(), _process_state(os.getpid())[1])

    @classmethod
    def read(cls, path: Path) -> _Holder | None:
        """Return who holds a lock, None if nobody does, and pid 0 if the file does not say."""
        try:
            content = json.loads(path.read_bytes())
            return cls(int(content["pid"]), str(content["host"]), str(content["started"]))
        except FileNotFoundError:
            return None
        except (ValueError, LookupError, TypeError):
            return cls(0, "", "")

    def as_bytes(self) -> bytes:
        return json.dumps({"pid": self.pid, "host": self.host, "started": self.started}).encode()

    def may_run(self) -> bool:
        """Return False only if it is certain that the process is gone."""
        if self.pid <= 0 or self.host != socket.gethostname():
            return True
        alive, started = _process_state(self.pid)
        # Where either start is not known (a hardened /proc), the pid alone decides.
        return alive and (not self.started or not started or started == self.started)


class RunLock:
    """A lock file, held."""

    def __init__(self, path: Path, files: FileOperations) -> None:
        self._path = path
        self._files = files

    @classmethod
    def acquire(cls, path: Path, files: FileOperations) -> RunLock:
        """Create the lock file, or take over that of a process that is gone.

        Raises:
            RunFolderError: if another process has it.
        """
        while True:
            try:
                files.write_file(path, _Holder.this_process().as_bytes(), exclusive=True)
                return cls(path, files)
            except FileExistsError:
                pass
            except OSError:  # such as a full disk: an empty lock would keep everybody out
                with contextlib.suppress(OSError):
                    files.remove(path)
                raise
            holder = _Holder.read(path)
            if holder is not None and holder.may_run():
                raise RunFolderError(_in_use(path, holder))
            if holder is not None:
                _take_away(path, holder, files)

    @staticmethod
    def held_by(path: Path) -> str | None:
        """In words for the user, who holds a lock; None if nobody does, or nobody that still runs."""
        holder = _Holder.read(path)
        return _in_use(path, holder) if holder is not None and holder.may_run() else None

    def release(self) -> None:
        """Give the lock up."""
        self._files.remove(self._path)


def _take_away(path: Path, holder: _Holder, files: FileOperations) -> None:
    """Remove a stale lock file.

    Two processes may have found it stale. Were both just to remove it, the slower would remove the lock that
    the faster has made by then. A rename gives the file to one of them, which then sees what it has got.
    """
    taken = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        files.replace(path, taken)
    except FileNotFoundError:
        return
    if _Holder.read(taken) == holder:
        files.remove(taken)
    else:
        files.replace(taken, path)


def _in_use(lock: Path, holder: _Holder) -> str:
    path = lock.parent
    if not holder.pid:
        return f"{path} is locked, and {lock} does not say by whom; if nothing is running it, delete that file"
    if holder.host != socket.gethostname():
        return (
            f"{path} is in use by process {holder.pid} on the machine {holder.host!r}, which can't be asked "
            f"from here; if it has ended, delete {lock}"
        )
    return f"{path} is in use by process {holder.pid}; wait for it, stop it, or use another --run-id"


def _process_state(pid: int) -> tuple[bool, str]:
    """Return whether a process of this machine is running, and when it started ("" if that can't be had)."""
    if sys.platform == "win32":
        # os.kill(pid, 0) would send Ctrl-C there.
        handle = ctypes.windll.kernel32.OpenProcess(0x1000, False, pid)  # PROCESS_QUERY_LIMITED_INFORMATION
        if not handle:
            return False, ""
        code = ctypes.c_ulong()
        ctypes.windll.kernel32.GetExitCodeProcess(handle, ctypes.byref(code))
        ctypes.windll.kernel32.CloseHandle(handle)
        return code.value == 259, ""  # STILL_ACTIVE
    try:
        # After the command's name, which may hold anything, in parentheses: state, …, start time as the 20th.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[0] not in "ZX", fields[19]  # a zombie runs no more, though nobody has asked for its exit code
    except (OSError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False, ""
    except PermissionError:
        pass
    return True, ""

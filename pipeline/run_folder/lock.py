"""The lock on a run's folder: only one process at a time may work on a run.

The operating system holds the lock and releases it when the process ends, however it ends. The file `.lock` names the
process for people and messages; nothing depends on it. The lock file may be deleted from the folder, so each writer
checks that the file is still the locked one (`HeldFolder`). A host that main has lost may still run where main can't
reach it, so each host also checks that main has not listed it in `LOST`.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from headrace.pipeline.common.errors import RunFolderError
from headrace.queues.disks import answered
from headrace.queues.files import FileOperations, append
from headrace.startup_context import shown

log = logging.getLogger(__name__)

LOCK = ".lock"
GUARD = ".lock.guard"
SOFT = ".lock.soft"
"""Name of the file that takes the lock's place on a file system without locks: it exists while a run holds it."""
LOST = ".lock.lost"
"""Name of the file that lists the incarnations of lost hosts, one a line."""
_SCANNED_S = 0.5 if sys.platform == "win32" else 0
"""Seconds that a virus scanner may keep the lock file open; 0 except on Windows."""


class HeldFolder:
    """A run's folder, for a process that writes to it. `lost` tells whether it is no longer the folder that was locked.

    Args:
        path: `results/<run-id>`.
        incarnation: `HostPlan.incarnation` of the host that writes.
    """

    def __init__(self, path: Path, incarnation: int = 0) -> None:
        self._incarnation = incarnation
        self.move(path)

    def move(self, path: Path) -> None:
        """Use a different folder from now on."""
        self.path = path
        self._lock = answered(path, _identity, path)

    def lost(self) -> str:
        """Return why this process must not write here; empty if it may, or if the folder can't be examined."""
        with suppress(OSError):
            return answered(self.path, self._lost)
        return ""

    def _lost(self) -> str:
        with suppress(OSError):
            if self._incarnation and str(self._incarnation) in (self.path / LOST).read_text("ascii", "replace").split():
                return f"{shown(self.path)} accepts nothing from this host, because main has lost it"
        identity = _identity(self.path)
        if self._lock in (None, identity) or identity == ():
            return ""
        return f"{shown(self.path)} is no longer the folder that this run has locked: it was removed, moved or replaced"

    def check(self) -> Path:
        """Return the folder's path, after checking that it is still the folder that was locked.

        Raises:
            OSError: if the folder was replaced or removed, or main has lost this host.
        """
        if why := self.lost():
            raise OSError(why)
        return self.path


def refuse_writes(run_folder: Path, *incarnations: int) -> None:
    """Let lost hosts write nothing more to the run's folder, even if they live on; see `HeldFolder`.

    Create the file before any host is lost: for up to a minute, NFS shows other machines no new file, but new content.
    """
    with suppress(OSError):
        append(run_folder / LOST, "".join(f"{incarnation}\n" for incarnation in incarnations).encode())


def _identity(run_folder: Path) -> tuple[int, ...] | None:
    """Return the lock file's identity (device, inode); None if the file is gone, () if it can't be examined."""
    try:
        state = (run_folder / GUARD).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return ()
    return state.st_dev, state.st_ino


class RunLock:
    """This process's lock on a run's folder.

    Args:
        run_folder: `results/<run-id>`.
        files: file operations.

    Raises:
        RunFolderError: if another process holds the lock.
    """

    def __init__(self, run_folder: Path, files: FileOperations) -> None:
        self._files = files
        self._path = run_folder / LOCK
        self._guard = answered(run_folder, lock_folder, run_folder)
        self.folder = HeldFolder(run_folder)
        try:
            files.write_file(self._path, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the lock."""
        try:
            with suppress(OSError):  # a file that is left over is harmless
                self.folder.check()
                self._files.remove(self._path)
        finally:
            self._guard.release()


def lock_folder(run_folder: Path) -> BaseFileLock:
    """Lock a run's folder without recording that this process is running it.

    Raises:
        RunFolderError: if another process holds the lock.
    """
    guard: BaseFileLock = FileLock(run_folder / GUARD, timeout=_SCANNED_S, thread_local=False)
    soft, instead = run_folder / SOFT, ""
    without_locks = f"; if that process was killed, delete {soft}"
    try:
        try:
            guard.acquire()
            if soft.exists():  # held by a machine on which this file system has no locks
                guard.release()
                instead = without_locks
                raise Timeout(str(soft))
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
                raise
            instead = without_locks
            log.warning(
                "The file system of %s supports no locks (%s): using %s", shown(run_folder), error.strerror, SOFT
            )
            guard = SoftFileLock(soft, timeout=_SCANNED_S, thread_local=False)
            guard.acquire()
    except Timeout as error:
        raise RunFolderError(
            f"{run_folder} is in use by {_holder(run_folder)}; wait for it, stop it, or use a different --run-id"
            f"{instead}"
        ) from error
    return guard


def _holder(run_folder: Path) -> str:
    try:
        holder = json.loads((run_folder / LOCK).read_bytes())
        elsewhere = "" if holder["host"] == socket.gethostname() else f" on the machine {holder['host']!r}"
        return f"process {holder['pid']}{elsewhere}"
    except (OSError, ValueError, LookupError, TypeError):  # the holder has not written the file yet, or can't
        return "another process"

"""Atomic file writes: a file is complete or absent, even after a crash of the process or the machine.

`write_atomic` writes a temporary file next to the target, syncs the file, renames it, and syncs the folder. Every
operation that changes the disk goes through a `FileOperations`, one primitive at a time, so a test can make any
primitive fail, or kill the process there.

These functions block (an fsync may take tens of milliseconds). All of them wait for the disk in `answered`, which names
a disk that hangs.

A `FileGuard` is for files that a run can do without: an error while writing a file affects only that file.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar

from headrace.pipeline.common.daemon_threads import answered
from headrace.queues.windows_files import once_released

P = ParamSpec("P")
R = TypeVar("R")

_SYNCS_FOLDERS = hasattr(os, "O_DIRECTORY")  # Windows can't sync folders; its file system journals renames
_TEMPORARY = re.compile(r"\..+\.\d+-\d+\.partial")
_counter = itertools.count()


class FileOperations:
    """The file operations used for atomic writes.

    The methods up to `listdir` are primitives: each does one thing to the disk, through `perform`. The later methods
    combine primitives. A test only needs to override `perform` to see every primitive's name, in order. If another
    program has the file open, the operation is retried for a few seconds (`queues.windows_files`).
    """

    pause: Callable[[float], object] = staticmethod(time.sleep)
    """Function that sleeps for a number of seconds."""

    def perform(self, operation: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Perform one primitive; `operation` is its name, for tests that make a particular primitive fail."""
        return answered(args[0], lambda: function(*args, **kwargs))

    def _patiently(self, operation: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return once_released(lambda: self.perform(operation, function, *args, **kwargs), self.pause)

    def open(self, path: Path) -> int:
        """Create an empty file, or truncate an existing one, and return its descriptor."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
        return self._patiently("open", os.open, path, flags, 0o666)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """Write some of `data` and return the number of bytes written."""
        return self.perform("write", os.write, descriptor, data)

    def fsync(self, descriptor: int) -> None:
        """Make the content of an open file, or the changes in an open folder, durable."""
        self.perform("fsync", os.fsync, descriptor)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        self.perform("close", os.close, descriptor)

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file or folder, atomically replacing an existing file with the new name."""
        self._patiently("replace", os.replace, source, target)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        self._patiently("unlink", os.unlink, path)

    def link(self, source: Path, target: Path) -> None:
        """Hard-link a file that no longer changes. Copy the file if the file system does not support links."""
        try:
            self.perform("link", os.link, source, target)
        except OSError as error:
            # On Windows, EINVAL means that the file system does not support links, as with FAT and network shares.
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS, errno.EINVAL):
                raise
            self.write_file(target, source.read_bytes())

    def mkdir(self, path: Path) -> None:
        """Create one folder.

        Raises:
            FileExistsError: if the folder exists.
        """
        self._patiently("mkdir", os.mkdir, path)

    def rmdir(self, path: Path) -> None:
        """Remove one empty folder."""
        self._patiently("rmdir", os.rmdir, path)

    def listdir(self, path: Path) -> list[str]:
        """Return the names in a folder, sorted so that failures are reproducible."""
        return sorted(self.perform("listdir", os.listdir, path))

    def write_file(self, path: Path, data: bytes | bytearray | memoryview) -> None:
        """Write a file and make its content durable (its name only after `sync_folder`)."""
        descriptor = self.open(path)
        try:
            rest = memoryview(data).cast("B")
            while rest:  # a large write may be partial: Linux stops at 2 GiB
                rest = rest[self.write(descriptor, rest) :]
            self.fsync(descriptor)
        finally:
            self.close(descriptor)

    def make_folder(self, path: Path) -> None:
        """Create a folder and its missing parents, durably."""
        if not path.is_dir():
            self.make_folder(path.parent)
            with contextlib.suppress(FileExistsError):  # another process has just created it
                self.mkdir(path)
            self.sync_folder(path.parent)

    def remove(self, path: Path) -> None:
        """Remove a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self.unlink(path)

    def remove_tree(self, folder: Path) -> None:
        """Remove a folder, if it exists, with everything in it. Links are removed, not followed."""
        if not folder.is_dir():
            return
        for name in self.listdir(folder):
            inner = folder / name
            if inner.is_dir() and not inner.is_symlink():
                self.remove_tree(inner)
            else:
                self.remove(inner)
        self.rmdir(folder)

    def sync_folder(self, folder: Path) -> None:
        """Make creations, renames and removals in a folder durable, if the platform supports that."""
        if not _SYNCS_FOLDERS:
            return
        descriptor = self.perform("open_folder", os.open, folder, os.O_RDONLY)
        try:
            self.fsync(descriptor)
        except OSError as error:
            # Some network file systems can't sync folders, and have no alternative.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            self.close(descriptor)


REAL = FileOperations()


def write_atomic(path: Path, data: bytes | bytearray | memoryview, *, files: FileOperations = REAL) -> None:
    """Write the file `path` so that a crash at any moment leaves either the complete old content or the new.

    On return, the new file is durable. On failure, the old file is unchanged and no temporary file remains. Only a
    process that ends during the write leaves a temporary file, which `clean_temporary` removes.

    Raises:
        OSError: if the folder is missing, the disk is full, …
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{next(_counter)}.partial")
    try:
        files.write_file(temporary, data)
        files.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            files.remove(temporary)
        raise
    files.sync_folder(path.parent)


def append(path: Path, data: bytes) -> None:
    """Append to a file. After a disk error, restore the old length, so the file still ends with a complete row."""
    answered(path, _append, path, data)


def _append(path: Path, data: bytes) -> None:
    with once_released(lambda: path.open("ab", buffering=0)) as file:
        end = file.seek(0, os.SEEK_END)
        try:
            while data:  # a disk that is filling up may accept part of the data
                data = data[file.write(data) :]
        except OSError:
            with contextlib.suppress(OSError):  # readers skip an incomplete row
                file.truncate(end)
            raise


def clean_temporary(folder: Path, *, files: FileOperations = REAL) -> list[Path]:
    """Remove and return the temporary files of interrupted `write_atomic` calls in a folder (not in its subfolders).

    Use this only for a folder that no running process writes to, because temporary files in use look the same.
    """
    left = [folder / name for name in files.listdir(folder) if _TEMPORARY.fullmatch(name)]
    for path in left:
        files.remove(path)
    return left


def free_name(path: Path) -> Path:
    """Return `path` or, if it exists, the first of `path-2`, `path-3`, … that does not."""
    taken, number = path, 1
    while taken.exists():
        number += 1
        taken = path.with_name(f"{path.name}-{number}")
    return taken


QUIET_S = 60.0
"""Seconds without an error after which a file counts as writable again, because a nearly full disk accepts some writes.
"""


class FileGuard:
    """Turns disk errors into warnings, one per file until the file can be written again.

    Args:
        log: receives the warnings.
        clock: returns seconds from any origin.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._failed_s: dict[str, float] = {}

    @contextlib.contextmanager
    def writing(self, file: object, lost: str) -> Iterator[list[str]]:
        """Turn a disk error in this context into a warning, and add the reason to the yielded list.

        Args:
            file: the file's path or name.
            lost: what is lost while the file can't be written; completes "Until the disk accepts it again, …".
        """
        name, now_s = str(file), self._clock()
        reasons: list[str] = []
        try:
            yield reasons
        except OSError as error:
            reasons.append(f"{error.strerror or error}")
            if name not in self._failed_s:
                text = "%s can't be written: %s. Training continues. Until the file can be written again, %s."
                self._log.warning(text, name, reasons[0], lost)
            self._failed_s[name] = now_s
        else:
            if now_s - self._failed_s.get(name, now_s) >= QUIET_S:
                del self._failed_s[name]
                self._log.info("%s can be written again.", name)

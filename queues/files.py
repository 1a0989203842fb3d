"""A run's files: durable, atomic writes, and the reading and writing of open files.

`write_atomic` writes a temporary file next to the target, syncs the file, renames it, and syncs the folder: a file is
complete or absent, even after a crash of the process or the machine. Every operation that changes the disk goes through
a `FileOperations`, one primitive at a time, so a test can make any primitive fail, or kill the process there.

These functions block (an fsync may take tens of milliseconds). All of them wait for the disk in `disks.answered`, which
names a disk that hangs. Windows refuses to change a file that TensorBoard, a viewer, a virus scanner or a file
synchroniser has open, usually for a moment. These operations are retried.

A `FileGuard` is for files that a run can do without: an error while writing a file affects only that file.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import itertools
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, ParamSpec, TypeVar

from headrace.queues.disks import answered

P = ParamSpec("P")
R = TypeVar("R")

Content = bytes | bytearray | memoryview | Callable[[BinaryIO], object]
"""What to write into a file: bytes, or a function that writes into the file that it receives."""

PAUSES_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.4)
"""Seconds between successive attempts to change a file that another program has open, five seconds in total."""
ON_LOOP = 6
"""Number of pauses in `PAUSES_S` that may block an event loop. Together they take less than a second."""
_HELD = {5, 32, 33, 145}
"""Windows error codes for a file that a program holds open: ERROR_ACCESS_DENIED, ERROR_SHARING_VIOLATION,
ERROR_LOCK_VIOLATION, and ERROR_DIR_NOT_EMPTY for removed files that are still open."""
_SYNCS_FOLDERS = hasattr(os, "O_DIRECTORY")  # Windows can't sync folders; its file system journals renames
_TEMPORARY = re.compile(r"\..+\.\d+-\d+\.partial")
_MOST_BYTES = 1 << 26
"""Maximum number of bytes in one write, so that a large file on a slow disk does not look like a disk that hangs."""
_counter = itertools.count()


def is_held(error: OSError) -> bool:
    """Return True if another program may have the file open."""
    # Errors from `open` have no Windows error code.
    is_refused = sys.platform == "win32" and isinstance(error, PermissionError)
    return is_refused or getattr(error, "winerror", None) in _HELD


def once_released(function: Callable[[], R], pause: Callable[[float], object] = time.sleep) -> R:
    """Call a function that changes a file, retrying for a few seconds while another program has the file open.

    Args:
        function: the function to call.
        pause: waits for a number of seconds.

    Raises:
        OSError: the error of the last attempt, with the remedy in `strerror`.
    """
    pauses: list[float] | None = None
    while True:
        try:
            return function()
        except OSError as error:
            if not is_held(error):
                raise
            if pauses is None:
                pauses = list(PAUSES_S[:ON_LOOP] if _blocks_loop() else PAUSES_S)
                waited_s = sum(pauses)
            if not pauses:
                error.strerror = (
                    f"{error.strerror}. For {waited_s:.1f} s, another program has kept the file open (a viewer, "
                    "TensorBoard, a virus scanner, a file synchroniser), or permissions prevent the change: close "
                    "that program, or exclude this folder from it"
                )
                raise
        pause(pauses.pop(0))


def _blocks_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class FileOperations:
    """The operations that change files.

    Each primitive does one thing to the disk, through `perform`, so a test only needs to override `perform` to see
    every primitive's name, in order. If another program has the file open, the operation is retried for a few seconds.
    """

    pause: Callable[[float], object] = staticmethod(time.sleep)
    """Function that sleeps for a number of seconds."""

    def perform(self, operation: str, file: object, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Perform one primitive on a file; `operation` is its name, for tests that make a particular primitive fail."""
        return answered(file, lambda: function(*args, **kwargs))

    def patiently(self, operation: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Perform a primitive whose first argument is the path, retrying while another program has the file open."""
        return once_released(lambda: self.perform(operation, args[0], function, *args, **kwargs), self.pause)

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file or folder, atomically replacing an existing file with the new name."""
        self.patiently("replace", os.replace, source, target)

    def link(self, source: Path, target: Path) -> None:
        """Hard-link a file that no longer changes. Copy the file if the file system does not support links."""
        try:
            self.perform("link", target, os.link, source, target)
        except OSError as error:
            # On Windows, EINVAL means that the file system does not support links, as with FAT and network shares.
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS, errno.EINVAL):
                raise
            self.write_file(target, read_file(source))

    def mkdir(self, path: Path) -> None:
        """Create one folder.

        Raises:
            FileExistsError: if the folder exists.
        """
        self.patiently("mkdir", os.mkdir, path)

    def listdir(self, path: Path) -> list[str]:
        """Return the names in a folder, sorted so that failures are reproducible."""
        return sorted(self.perform("listdir", path, os.listdir, path))

    def write_file(self, path: Path, content: Content) -> None:
        """Write a file and make its content durable (its name only after `sync_folder`)."""
        with File(path, "wb", self) as file:
            if callable(content):
                with io.BufferedWriter(file) as buffered:
                    content(buffered)
                    buffered.flush()
                    file.sync()
            else:
                file.write_all(content)
                file.sync()

    def make_folder(self, path: Path) -> None:
        """Create a folder and its missing parents, durably."""
        if not answered(path, path.is_dir):
            self.make_folder(path.parent)
            with contextlib.suppress(FileExistsError):  # another process has just created it
                self.mkdir(path)
            self.sync_folder(path.parent)

    def remove(self, path: Path) -> None:
        """Remove a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self.patiently("unlink", os.unlink, path)

    def remove_tree(self, folder: Path) -> None:
        """Remove a folder, if it exists, with everything in it. Links are removed, not followed."""
        if not answered(folder, folder.is_dir):
            return
        for name in self.listdir(folder):
            inner = folder / name
            if answered(inner, lambda inner=inner: inner.is_dir() and not inner.is_symlink()):
                self.remove_tree(inner)
            else:
                self.remove(inner)
        self.patiently("rmdir", os.rmdir, folder)

    def sync_folder(self, folder: Path) -> None:
        """Make creations, renames and removals in a folder durable, if the platform supports that."""
        if not _SYNCS_FOLDERS:
            return
        descriptor = self.perform("open_folder", folder, os.open, folder, os.O_RDONLY)
        try:
            self.perform("fsync", folder, os.fsync, descriptor)
        except OSError as error:
            # Some network file systems can't sync folders, and have no alternative.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            self.perform("close", folder, os.close, descriptor)


REAL = FileOperations()


class File(io.FileIO):
    """An open file without a buffer; each call waits for the disk in `answered`.

    Args:
        path: the file's path.
        mode: as for `open`, in binary mode.
        files: file operations.
    """

    def __init__(self, path: str | os.PathLike[str], mode: str = "rb", files: FileOperations = REAL) -> None:
        self._files, self._is_abandoned = files, False
        try:
            files.patiently("open", self._open, os.fspath(path), mode)
        except OSError:
            self._is_abandoned = True
            raise

    def _open(self, path: str, mode: str) -> None:
        if mode == "rb" and os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
            raise OSError(errno.ESPIPE, "is not a regular file", path)  # it may block forever, or never end
        super().__init__(path, mode)
        if self._is_abandoned:  # the disk has answered too late
            super().close()

    def readinto(self, buffer: Any) -> int | None:
        """Read into a buffer."""
        return answered(self.name, super().readinto, buffer)

    def readall(self) -> bytes:
        """Read the rest of the file."""
        return answered(self.name, super().readall)

    def write(self, data: Any) -> int:
        """Write some of the data, and return the number of bytes written."""
        some = memoryview(data).cast("B")[:_MOST_BYTES]
        return self._files.perform("write", self.name, super().write, some)

    def write_all(self, data: Any) -> None:
        """Write all of the data; the system may write only part of a large block at a time."""
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[self.write(rest) :]

    def truncate(self, size: int | None = None) -> int:
        """Change the file's size."""
        return answered(self.name, super().truncate, size)

    def sync(self) -> None:
        """Make the content durable."""
        self._files.perform("fsync", self.name, os.fsync, self.fileno())

    def close(self) -> None:
        """Close the file; may be called more than once."""
        if not self.closed:
            self._files.perform("close", self.name, super().close)


def read_file(path: Path) -> bytes:
    """Return a file's content."""
    with File(path) as file:
        return file.readall()


def matching(folder: Path, pattern: str) -> list[Path]:
    """Return the paths in a folder that match a pattern, sorted; none if there is no such folder."""
    return answered(folder, lambda: sorted(folder.glob(pattern)))


def write_atomic(path: Path, content: Content, *, files: FileOperations = REAL) -> None:
    """Write the file `path` so that a crash at any moment leaves either the complete old content or the new.

    On return, the new file is durable. On failure, the old file is unchanged and no temporary file remains. Only a
    process that ends during the write leaves a temporary file, which `clean_temporary` removes.

    Raises:
        OSError: if the folder is missing, the disk is full, …
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{next(_counter)}.partial")
    try:
        files.write_file(temporary, content)
        files.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            files.remove(temporary)
        raise
    files.sync_folder(path.parent)


def append(path: Path, data: bytes) -> None:
    """Append to a file. After a disk error, restore the old length, so the file still ends with a complete row."""
    with File(path, "ab") as file:
        end = file.seek(0, os.SEEK_END)
        try:
            file.write_all(data)  # a disk that is filling up may accept part of the data
        except OSError:
            with contextlib.suppress(OSError):  # readers skip an incomplete row
                file.truncate(end)
            raise


def clean_temporary(folder: Path, *, files: FileOperations = REAL) -> None:
    """Remove the temporary files of interrupted `write_atomic` calls in a folder (not in its subfolders).

    Use this only for a folder that no running process writes to, because temporary files in use look the same.
    """
    for name in files.listdir(folder):
        if _TEMPORARY.fullmatch(name):
            files.remove(folder / name)


def free_name(path: Path) -> Path:
    """Return `path` or, if it exists, the first of `path-2`, `path-3`, … that does not."""
    taken, number = path, 1
    while answered(taken, taken.exists):
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

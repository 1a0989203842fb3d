"""Atomic files: present whole or not at all, whatever stops the process or the machine.

`write_atomic` writes beside the target, makes that durable, renames, and makes the renaming durable. Every
operation that changes the disk goes through a `FileOperations`, one primitive at a time, so that a test can
let each of them fail, or end the process there.

These functions block (an fsync may take tens of milliseconds): on an event loop, call them in
`asyncio.to_thread`.

A `FileGuard` is for files that a run can do without: a disk that refuses one costs that file, not the training.
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

from headrace.queues.held_files import once_released

P = ParamSpec("P")
R = TypeVar("R")

_SYNCS_FOLDERS = hasattr(os, "O_DIRECTORY")  # Windows has no such thing; its renames are journalled by the file system
_TEMPORARY = re.compile(r"\..+\.\d+-\d+\.partial")
_counter = itertools.count()


class FileOperations:
    """The file operations that atomic writing is composed of.

    The first group are primitives: each does one thing to the disk, through `perform`. The second group is
    composed of them. A test overrides `perform` alone and sees every primitive by name, in order. What is refused as
    another program has the file open is tried again for some seconds (`queues.held_files`).
    """

    pause: Callable[[float], object] = staticmethod(time.sleep)
    """Waits for some seconds."""

    def perform(self, operation: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Do one primitive; `operation` is its name, for tests that let a certain one fail."""
        return function(*args, **kwargs)

    def _patiently(self, operation: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return once_released(lambda: self.perform(operation, function, *args, **kwargs), self.pause)

    def open(self, path: Path) -> int:
        """Create an empty file, or empty an existing one, and return its descriptor."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
        return self._patiently("open", os.open, path, flags, 0o666)

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """Write some of `data` and return how many bytes that was."""
        return self.perform("write", os.write, descriptor, data)

    def fsync(self, descriptor: int) -> None:
        """Make what was written to an open file, or what happened in an open folder, durable."""
        self.perform("fsync", os.fsync, descriptor)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        self.perform("close", os.close, descriptor)

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file or folder; an existing file of the new name is replaced in the same instant."""
        self._patiently("replace", os.replace, source, target)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        self._patiently("unlink", os.unlink, path)

    def link(self, source: Path, target: Path) -> None:
        """Give a file, which nobody changes any more, a second name; where the file system has no such, copy it."""
        try:
            self.perform("link", os.link, source, target)
        except OSError as error:
            # EINVAL is what Windows says of file systems without links: FAT, shares of other machines.
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS, errno.EINVAL):
                raise
            self.write_file(target, source.read_bytes())

    def mkdir(self, path: Path) -> None:
        """Create one folder.

        Raises:
            FileExistsError: if it exists.
        """
        self._patiently("mkdir", os.mkdir, path)

    def rmdir(self, path: Path) -> None:
        """Remove one empty folder."""
        self._patiently("rmdir", os.rmdir, path)

    def listdir(self, path: Path) -> list[str]:
        """Return the names in a folder, sorted, so that a failure happens at the same place each time."""
        return sorted(self.perform("listdir", os.listdir, path))

    def write_file(self, path: Path, data: bytes | bytearray | memoryview) -> None:
        """Write a whole file and make its content durable (its name only after `sync_folder`)."""
        descriptor = self.open(path)
        try:
            rest = memoryview(data).cast("B")
            while rest:  # a large write may be cut short: Linux stops at 2 GiB
                rest = rest[self.write(descriptor, rest) :]
            self.fsync(descriptor)
        finally:
            self.close(descriptor)

    def make_folder(self, path: Path) -> None:
        """Create a folder and those above it, as far as they are missing, durably."""
        if not path.is_dir():
            self.make_folder(path.parent)
            with contextlib.suppress(FileExistsError):  # another process has just made it
                self.mkdir(path)
            self.sync_folder(path.parent)

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self.unlink(path)

    def remove_tree(self, folder: Path) -> None:
        """Remove a folder, if it is there, with everything in it. Links are removed, not followed."""
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
        """Make what was created, renamed and removed in a folder durable, where the platform can."""
        if not _SYNCS_FOLDERS:
            return
        descriptor = self.perform("open_folder", os.open, folder, os.O_RDONLY)
        try:
            self.fsync(descriptor)
        except OSError as error:
            # Some network file systems can't sync folders; there is no better way.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            self.close(descriptor)


REAL = FileOperations()


def write_atomic(path: Path, data: bytes | bytearray | memoryview, *, files: FileOperations = REAL) -> None:
    """Write the file `path` so that a crash at any moment leaves either the old content or the new, whole.

    On return the new file is durable. On failure the old one is still there and nothing is left behind; only a
    process that ends midway leaves a temporary file, for `clean_temporary`.

    Raises:
        OSError: if the folder is missing, the disk full, …
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


def clean_temporary(folder: Path, *, files: FileOperations = REAL) -> list[Path]:
    """Remove, and return, the temporary files of interrupted `write_atomic` calls in a folder (not below it).

    Only for a folder that no running process writes to: temporary files in use look alike.
    """
    left = [folder / name for name in files.listdir(folder) if _TEMPORARY.fullmatch(name)]
    for path in left:
        files.remove(path)
    return left


def free_name(path: Path) -> Path:
    """Return `path`, or the first of `path-2`, `path-3`, … that is not taken."""
    taken, number = path, 1
    while taken.exists():
        number += 1
        taken = path.with_name(f"{path.name}-{number}")
    return taken


QUIET_S = 60.0
"""Seconds without an error after which a file counts as written again: a disk that is almost full takes some writes."""


class FileGuard:
    """Turns errors of the disk into warnings, one for each file until it can be written again.

    Args:
        log: receives the warnings.
        clock: seconds, from any start.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._failed_s: dict[str, float] = {}

    @contextlib.contextmanager
    def writing(self, file: object, lost: str) -> Iterator[list[str]]:
        """Guard the statements that write a file; those after one that fails are skipped, and the list gets the reason.

        Args:
            file: its path, or what it is called.
            lost: what is lost as long as it can't be written; completes "Until the disk takes it again, …".
        """
        name, now_s = str(file), self._clock()
        reasons: list[str] = []
        try:
            yield reasons
        except OSError as error:
            reasons.append(f"{error.strerror or error}")
            if name not in self._failed_s:
                text = "%s can't be written: %s. Training goes on. Until the disk takes it again, %s."
                self._log.warning(text, name, reasons[0], lost)
            self._failed_s[name] = now_s
        else:
            if now_s - self._failed_s.get(name, now_s) >= QUIET_S:
                del self._failed_s[name]
                self._log.info("%s is written again.", name)

"""Handles files that Windows refuses to change: open files (usually for a moment) and files with long paths.

TensorBoard, a viewer, a virus scanner or a file synchroniser may hold a file open. Other systems allow changes to open
files.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeVar

R = TypeVar("R")

PAUSES_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.4)
"""Seconds between successive attempts, five seconds in total."""
ON_LOOP = 6
"""Number of pauses in `PAUSES_S` that may block an event loop. Together they take less than a second."""
_HELD = {5, 32, 33, 145}
"""Windows error codes for a file that a program holds open: ERROR_ACCESS_DENIED, ERROR_SHARING_VIOLATION,
ERROR_LOCK_VIOLATION, and ERROR_DIR_NOT_EMPTY for removed files that are still open."""


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


def takes_long_paths() -> bool:
    """Return False if paths are limited to 259 characters, as on Windows unless LongPathsEnabled is set."""
    if sys.platform == "win32":
        import winreg

        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"SYSTEM\CurrentControlSet\Control\FileSystem") as key:
                return bool(winreg.QueryValueEx(key, "LongPathsEnabled")[0])
        except OSError:  # older versions of Windows do not have the setting
            return False
    return True


def write_whole(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write a file durably and atomically; after a failure, the old content is intact.

    Args:
        path: the file.
        write: writes the content to the unbuffered file that it receives.

    Raises:
        OSError: if writing fails.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with temporary.open("wb", buffering=0) as file:
            write(file)
            os.fsync(file.fileno())
        once_released(lambda: os.replace(temporary, path))
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def write_all(file: IO[bytes], data: bytes | memoryview) -> None:
    """Write all bytes to an unbuffered file."""
    rest = memoryview(data)
    while rest:  # the system may write only part of a large block
        rest = rest[file.write(rest) :]


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, if the platform supports this (Windows journals renames)."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems can't sync folders
            os.fsync(descriptor)
    finally:
        os.close(descriptor)

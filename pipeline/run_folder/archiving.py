"""Archives an earlier run's folder to make way for a new run with the same name."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from headrace.pipeline.common.errors import RunFolderError
from headrace.pipeline.run_folder.atomic_files import FileOperations
from headrace.pipeline.run_folder.lock import LOCK, hold
from headrace.queues.held_files import is_held, once_released


def archive(path: Path, files: FileOperations) -> None:
    """Rename a run's folder to the first free `<run-id>-archived-<n>`; raise an error if the run is in progress."""
    guard = hold(path)
    try:
        if sys.platform == "win32":
            guard.release()  # on Windows, an open file prevents renaming its folder
        number = 1
        while (aside := path.with_name(f"{path.name}-archived-{number}")).exists():
            number += 1
        once_released(lambda: files.perform("replace", os.replace, path, aside), files.pause, loop_waits=True)
    except OSError as error:
        if not is_held(error):
            raise
        held = next((inner for inner in sorted(path.rglob("*")) if inner.is_file() and not _moves(inner, files)), path)
        raise RunFolderError(
            f"{path} can't be archived, because a program has {held} open: {error.strerror}; close it, or use a "
            "different --run-id"
        ) from error
    finally:
        guard.release()
    files.sync_folder(path.parent)
    files.remove(aside / LOCK)  # left behind by a killed process


def _moves(file: Path, files: FileOperations) -> bool:
    """Return True if a file can be renamed to its current name, which means that no program has it open."""
    try:
        files.perform("replace", os.replace, file, file)
    except OSError:
        return False
    return True

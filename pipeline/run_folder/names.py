"""Names that are valid on every operating system, for a run's folder and the files in it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from headrace.config.paths import file_name
from headrace.pipeline.common.errors import RunFolderError
from headrace.pipeline.common.graph import TRAINER, learner_name, part_name
from headrace.pipeline.run_folder.checkpoint import part_file
from headrace.pipeline.run_folder.lock import GUARD, LOCK, LOST

CONFIGURATION = "configuration.yaml"
FOLDERS = ("run_logs", "checkpoints", "streams", "demonstrations", "Pipeline")
OF_TRACKERS = ("wandb", "wandb_run_id.txt", "mlflow_run_id.txt")
METADATA = "metadata"
"""Key of `training_status.json` that is not a behaviour."""
RESERVED = (*FOLDERS, CONFIGURATION, LOCK, GUARD, LOST, "curves.png", *OF_TRACKERS, METADATA)
"""Names that no behaviour may have, because every run has a file, folder or entry with that name."""
_LONGEST_NAME = 255
"""Maximum length of a file name, in bytes, on most disks."""
_WHILE_WRITTEN = 25
"""How much longer a temporary file's name is than the final name, in bytes."""


def check_behavior_name(name: str) -> None:
    """Refuse a behaviour name that a run can't use to save its progress.

    Raises:
        RunFolderError: if the name is unusable.
    """
    file = file_name(name)
    part = len(os.fsencode(part_file(part_name(TRAINER, learner_name(name))))) + _WHILE_WRITTEN
    if re.search("[\ud800-\udfff]", name):
        why = "it contains an unpaired surrogate, which is not a valid character"
    elif file.lower() in (reserved.lower() for reserved in RESERVED):
        why = (
            f"{file!r} is the name of a file, folder or entry that every run has (reserved names: "
            f"{', '.join(RESERVED)})"
        )
    elif part > _LONGEST_NAME:
        why = f"its files would have names of up to {part} bytes, but at most {_LONGEST_NAME} are possible"
    else:
        return
    raise RunFolderError(f"behavior {name!r}: {why}; choose a different name for the behavior")


def behavior_folder(run_folder: Path, category: str) -> Path:
    """Return a behaviour's folder, which need not exist; the names of its files begin with the folder's name.

    Args:
        run_folder: the run's folder.
        category: the behaviour's name, or the name of its folder.
    """
    encoded, given = run_folder / file_name(category), run_folder / category
    return given if "%" in category and not encoded.is_dir() and given.is_dir() else encoded


def check_run_id(run_id: str) -> None:
    """Refuse a run id that can't name a folder.

    Raises:
        RunFolderError: if the id can't name a folder.
    """
    if not run_id.strip(" .") or re.search(r"[/\\\x00-\x1f]", run_id):
        raise RunFolderError(
            f"run id {run_id!r} can't name a folder: it must contain a letter or digit, and no '/' or '\\'; to put "
            "results elsewhere use --results-dir"
        )


_LONGEST_PATH = 259
_BELOW = 110
"""Length of the longest path below a run's folder: that of a checkpoint's part while it is written, for a behaviour
whose name has about thirty characters."""


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


def check_length(path: Path, takes_long: Callable[[], bool] = takes_long_paths) -> None:
    """Refuse a run's folder in which file paths would be too long for this system.

    Raises:
        RunFolderError: if the paths would be too long.
    """
    length = len(os.path.abspath(path))
    if length + _BELOW > _LONGEST_PATH and not takes_long():
        raise RunFolderError(
            f"{path} has {length} characters, and files in it have up to {_BELOW} more, but Windows allows "
            f"{_LONGEST_PATH} here: choose a shorter --results-dir or --run-id, or set LongPathsEnabled "
            "(docs/platforms.md) and start again"
        )

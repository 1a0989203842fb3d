"""Models as single files: an experiment's last checkpoint, with all that going on from it needs, in a zip."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

from headrace.pipeline.common.errors import CommandError
from headrace.pipeline.run_folder.atomic_files import free_name
from headrace.pipeline.run_folder.folder import CONFIGURATION
from headrace.pipeline.run_folder.lock import LOCK

_LEFT_OUT = ("run_logs", "streams")
_MANIFEST = "checkpoints/manifest.json"


def save(folder: Path, target: Path) -> Path:
    """Save an experiment as one file; returns its path, which ends with .zip.

    Raises:
        CommandError: if it can't be written.
    """
    path = target.with_suffix(".zip")
    partial = path.with_suffix(".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(folder.rglob("*")):
                inner = file.relative_to(folder)
                if file.is_file() and inner.parts[0] not in _LEFT_OUT and not file.name.startswith(LOCK):
                    archive.write(file, str(inner))
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise CommandError(f"--save_model_path {path}: can't be written: {error.strerror or error}") from error
    return path


def same_checkpoint(model: Path, folder: Path) -> bool:
    """Return True if an experiment's last checkpoint is that of a saved model.

    Raises:
        CommandError: if the file is no saved model.
    """
    with _opened(model) as archive:
        saved = archive.read(_MANIFEST)
    try:
        return (folder / _MANIFEST).read_bytes() == saved
    except OSError:
        return False


def unpack(model: Path, folder: Path) -> None:
    """Make an experiment's folder of a saved model.

    Raises:
        CommandError: if the file is no saved model.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = free_name(folder.with_name(f"{folder.name}.partial"))
    with _opened(model) as archive:
        try:
            archive.extractall(partial)  # names that lead out of the folder are made to stay inside
            partial.replace(folder)
        except (OSError, zipfile.BadZipFile) as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise CommandError(f"--resume_model_path {model}: can't be unpacked: {error}") from error


def _opened(model: Path) -> zipfile.ZipFile:
    try:
        archive = zipfile.ZipFile(model)
    except (OSError, zipfile.BadZipFile) as error:
        raise CommandError(f"--resume_model_path {model}: can't be read: {error}") from error
    names = set(archive.namelist())
    if {CONFIGURATION, _MANIFEST} <= names:
        return archive
    archive.close()
    theirs = "policy.pth" in names
    raise CommandError(
        f"--resume_model_path {model}: "
        + (
            "is a model of Stable-Baselines3, which can't be gone on from here: train anew, it is saved without being "
            "asked"
            if theirs
            else "is no model that --save_model_path has written"
        )
    )

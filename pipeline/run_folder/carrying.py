"""A run as a single file: a zip of its configuration, newest checkpoint and policies.

The zip has a checksum (CRC-32) for each file, which is compared when the file is extracted. `headrace.json` names the
format and the run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from pathlib import Path
from typing import BinaryIO

from headrace.config.plain_data import parse_json
from headrace.pipeline.common.errors import RunFolderError
from headrace.pipeline.run_folder.checkpoint import MANIFEST, CheckpointError, newest_checkpoint
from headrace.pipeline.run_folder.names import CONFIGURATION, behavior_folder, check_length, check_run_id
from headrace.queues.archive import UNREADABLE, open_archive
from headrace.queues.files import REAL, write_atomic
from headrace.startup_context import absolute

SUFFIX = ".zip"
LISTING = "headrace.json"
_POLICY = "policy.pth"
"""Name of the weights file in a Stable-Baselines3 model."""
_STABLE_BASELINES = (
    "this is a Stable-Baselines3 model, whose weights Headrace can't read: train a new policy here "
    "(docs/stable-baselines3.md)"
)
_FORMAT = 1
_SCORES_AND_POOLS = ("*/*-best.json", "*/league.json", "*/league/pool.json", "*/league/*.policy")


def carry(run_folder: Path, path: str | os.PathLike[str]) -> Path:
    """Write a run to one file, atomically; return its path.

    Args:
        run_folder: `results/<run-id>`.
        path: path of the file; `.zip` is added if the path has no suffix. An existing file is replaced.

    Raises:
        RunFolderError: if the run has no checkpoint, or its newest checkpoint is damaged.
        OSError: if the file can't be written.
    """
    target = _with_suffix(absolute(path))
    files = _files(run_folder)

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", strict_timestamps=False) as archive:
            for name, source in files.items():
                archive.write(source, name)
            archive.writestr(LISTING, json.dumps({"format": _FORMAT, "run_id": run_folder.name}))

    REAL.make_folder(target.parent)
    write_atomic(target, write)
    return target


def unpack(path: str | os.PathLike[str], results_dir: str | os.PathLike[str], run_id: str | None) -> Path:
    """Unpack a saved run into a folder; return the folder.

    Args:
        path: path of the file; `.zip` may be omitted.
        results_dir: parent of the new folder.
        run_id: name of the new folder; None to use the saved run's id.

    Raises:
        RunFolderError: if the folder exists, or the file is damaged or not a saved run.
    """
    source = absolute(path)
    source = source if source.is_file() else _with_suffix(source)
    if not source.is_file():
        raise RunFolderError(f"{source}: no such file or run folder")
    try:
        with open_archive(source) as archive:
            saved_id = _run_id_in(archive, source)
            name = saved_id if run_id is None else run_id
            check_run_id(name)
            folder = absolute(results_dir) / name
            check_length(folder)
            if folder.exists():
                raise RunFolderError(f"{folder} already exists: choose a different run_id, or remove that folder")
            partial = folder.with_name(f".{folder.name}.{os.getpid()}-0.partial")
            try:
                names = [name for name in archive.namelist() if name != LISTING]
                if odd := [n for n in names if {"", ".", ".."} & {*re.split(r"[/\\:]", n)} or n.count("/") > 9]:
                    raise RunFolderError(f"{source}: its entry {odd[0][:99]!r} is outside the run's folder or too deep")
                archive.extractall(partial, names)
                REAL.replace(partial, folder)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except UNREADABLE as error:
        raise RunFolderError(f"{source} is damaged or is not a saved run: {error}") from error
    return folder


def _with_suffix(path: Path) -> Path:
    return path if path.suffix else path.with_name(f"{path.name}{SUFFIX}")


def _files(run_folder: Path) -> dict[str, Path]:
    """Return the files needed to resume or play a run, keyed by their names in the archive."""
    try:
        checkpoint = newest_checkpoint(run_folder / "checkpoints")
        if checkpoint is None:
            raise RunFolderError(f"{run_folder} can't be saved: it has no checkpoint yet")
        checkpoint.check()
    except CheckpointError as error:
        raise RunFolderError(f"{run_folder} can't be saved: {error}") from error
    paths = [run_folder / CONFIGURATION, *checkpoint.folder.iterdir()]
    for behavior in checkpoint.steps:
        folder = behavior_folder(run_folder, behavior)
        paths += [file for file in folder.glob("*") if file.suffix in (".pt", ".onnx")]
    for pattern in _SCORES_AND_POOLS:
        paths += run_folder.glob(pattern)
    return {path.relative_to(run_folder).as_posix(): path for path in sorted(paths)}


def same_checkpoint(path: Path, run_folder: Path) -> bool:
    """Return True if a run's newest checkpoint is that of a saved run.

    Raises:
        CheckpointError: if none of the run's checkpoints can be read.
        RunFolderError: if the file is not a saved run.
    """
    checkpoint = newest_checkpoint(run_folder / "checkpoints")
    try:
        with open_archive(path) as archive:
            _run_id_in(archive, path)
            if checkpoint is None:
                return False
            manifest = checkpoint.folder / MANIFEST
            name = manifest.relative_to(run_folder).as_posix()
            return name in archive.namelist() and archive.read(name) == manifest.read_bytes()
    except UNREADABLE as error:
        raise RunFolderError(f"{path} is damaged or is not a saved run: {error}") from error


def describe_archive(path: Path) -> str:
    """Describe an archive and say how to read it; return "" for any other file."""
    try:
        with open_archive(path) as archive:
            names = archive.namelist()
    except UNREADABLE:
        return ""
    if LISTING in names:
        return "this is a saved run; extract its folder with headrace.load"
    if _POLICY in names:
        return _STABLE_BASELINES
    return "this is a policy; read it with load_policy" if any(name.endswith("/data.pkl") for name in names) else ""


def _run_id_in(archive: zipfile.ZipFile, source: Path) -> str:
    """Return the id of the saved run in an archive."""
    if LISTING not in archive.namelist():
        what = describe_archive(source) or "this archive was not written by RunResult.save"
        raise RunFolderError(f"{source}: expected a saved run; {what}")
    listing = parse_json(archive.read(LISTING))
    if listing.get("format") != _FORMAT:
        raise RunFolderError(
            f"{source} has format {listing.get('format')}, but this version of Headrace reads format {_FORMAT}"
        )
    return str(listing["run_id"])

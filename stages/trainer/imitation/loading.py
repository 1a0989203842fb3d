"""Loads the demonstrations at a `demo_path`: finds the files, reads them, and checks their content.

A file's suffix determines its format; `formats` has the table of readers.
"""

from __future__ import annotations

import glob
import logging
from dataclasses import replace
from pathlib import Path

from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import StageError
from headrace.stages.trainer.imitation.demonstrations import Demonstrations, checked, joined
from headrace.stages.trainer.imitation.formats import (
    PREFIX,
    READERS,
    WITHOUT_SPEC,
    looks_recorded,
    read_minari,
    without_doubles,
)
from headrace.startup_context import absolute

log = logging.getLogger(__name__)


def load_demonstrations(path: str, wanted: BehaviorSpec | str, folder: Path | None = None) -> Demonstrations:
    """Load all demonstrations at a `demo_path`, in file name order.

    Args:
        path: a file, a folder (all its readable files are loaded), a pattern, or `minari:<data set id>`; a relative
            path is looked up in `folder`, then in the working directory.
        wanted: the learning behaviour's spec; or, without an environment, only the behaviour's name, which the recorded
            spec then gets.
        folder: the YAML's folder.

    Raises:
        StageError: if no file exists, a file can't be read or is empty, observations or actions differ from the
            behaviour's or between files, a number is NaN or infinite, or an action is out of bounds.
        StreamError: if a `.stream` file is not a stream file.
    """
    behavior, spec = (wanted, None) if isinstance(wanted, str) else (wanted.name, wanted)
    parts: list[Demonstrations] = []
    minari = path.startswith(PREFIX)
    for file in [Path(path)] if minari else _files(path, behavior, folder):
        part = read_minari(path, behavior) if minari else READERS[file.suffix](file, behavior, spec)
        if part is None:
            continue
        spec = spec or replace(part.spec, behavior_id=behavior)
        parts.append(checked(part, spec, path if minari else str(file)))
    if not parts:
        raise StageError(f"behaviors.{behavior}: demo_path {path!r}: the recording contains no steps of {behavior}")
    demonstrations = joined(parts)
    log.info(
        "%s: %d demonstrated steps in %d episodes from %s",
        *(behavior, len(demonstrations), len(demonstrations.episode_lengths), path),
    )
    return demonstrations


def needs_spec(path: str, behavior: str, folder: Path | None = None) -> bool:
    """Return True if the files at a `demo_path` don't store spaces, so the environment must provide them.

    The files must exist and be in a readable format, but their content is not read.

    Raises:
        StageError: as for `load_demonstrations`.
    """
    return not path.startswith(PREFIX) and any(file.suffix in WITHOUT_SPEC for file in _files(path, behavior, folder))


def _files(path: str, behavior: str, folder: Path | None) -> list[Path]:
    """Return the readable files at a `demo_path`; only a folder or a pattern may also stand for other files."""
    where = f"behaviors.{behavior}: demo_path {path!r}"
    candidates = [absolute(path)] if folder is None else [folder / path, absolute(path)]
    for candidate in candidates:
        if candidate.is_dir():
            found = sorted(candidate.iterdir())
            break
        found = (
            [candidate] if candidate.is_file() else list(map(Path, sorted(glob.glob(str(candidate), recursive=True))))
        )
        if found:
            break
    else:
        looked = " and ".join(dict.fromkeys(str(candidate.parent) for candidate in candidates))
        raise StageError(f"{where}: no file or folder matches; looked in {looked}")
    files = [file for file in found if file.is_file()]
    readable = [
        file
        for file in files
        if file.suffix in READERS and (file.suffix != ".json" or file == candidate or looks_recorded(file))
    ]
    left_out = sorted({file.name for file in files} - {file.name for file in readable})
    if not readable:
        *others, last = READERS
        raise StageError(
            f"{where}: expected {', '.join(others)} or {last} files; found {', '.join(left_out) or 'an empty folder'}"
        )
    if left_out:
        log.info("%s: skipped these files, which are not in a format for demonstrations: %s", path, ", ".join(left_out))
    return without_doubles(readable)

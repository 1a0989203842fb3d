"""Loads the demonstrations at a `demo_path`: finds the files, reads them, and checks their content.

A file's suffix determines its format; to read another format, write a `Reader` and add it to `READERS`.
"""

from __future__ import annotations

import glob
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import StageError
from headrace.stages.trainer.imitation.demonstrations import Demonstrations, check_fit, checked, joined
from headrace.stages.trainer.imitation.godot_demos import looks_recorded, read_godot_demos
from headrace.stages.trainer.imitation.minari_sets import PREFIX, read_minari
from headrace.stages.trainer.imitation.streams import read_stream, without_doubles
from headrace.startup_context import absolute

log = logging.getLogger(__name__)

Reader = Callable[[Path, str, BehaviorSpec | None], Demonstrations | None]
"""A function that takes a path, a behaviour name and a spec, and returns the behaviour's steps with the spec that they
were recorded with; None if there are no steps.

Formats that store no spec use the learner's spec, which is the third argument (None without an environment).

The caller checks spec and numbers. A reader raises StageError or StreamError if the file is broken or has a different
format."""


def read_demo_file(path: Path, behavior: str, spec: BehaviorSpec | None) -> Demonstrations | None:
    """Read a Unity demo file, which contains its spec."""
    from headrace.stages.trainer.imitation.unity_demos import (
        read_unity_demo,  # imported here, because few learners need Unity's formats
    )

    return read_unity_demo(path, behavior)


READERS: dict[str, Reader] = {
    ".demo": read_demo_file,
    ".stream": lambda path, behavior, spec: read_stream(path, behavior),
    ".json": read_godot_demos,
}
"""The reader for each file suffix."""

WITHOUT_SPEC = frozenset({".json"})
"""Suffixes of files that don't store observation and action spaces, which the environment must then provide."""


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
    for name, part in _read(path, behavior, spec, folder):
        if part is None:
            continue
        spec = spec or replace(part.spec, behavior_id=behavior)
        if name.endswith(".demo"):
            from headrace.stages.trainer.imitation.unity_demos import as_observed

            part = as_observed(part, spec, name)
        check_fit(part.spec, spec, name)
        parts.append(replace(checked(part, name), spec=spec))
    if not parts:
        raise StageError(f"{_where(path, behavior)}: the recording contains no steps of {behavior}")
    demonstrations = joined(parts)
    log.info(
        "%s: %d demonstrated steps in %d episodes from %s",
        *(behavior, len(demonstrations), len(demonstrations.episode_lengths), path),
    )
    return demonstrations


def check_there(path: str, behavior: str, folder: Path | None = None) -> None:
    """Check that there are files in a readable format at a `demo_path`, without reading their content.

    Raises:
        StageError: as for `load_demonstrations`.
    """
    if not path.startswith(PREFIX):
        _files(path, behavior, folder)


def needs_spec(path: str, behavior: str, folder: Path | None = None) -> bool:
    """Return True if the files at a `demo_path` don't store spaces, so the environment must provide them.

    Raises:
        StageError: as for `check_there`.
    """
    return not path.startswith(PREFIX) and any(file.suffix in WITHOUT_SPEC for file in _files(path, behavior, folder))


def _read(
    path: str, behavior: str, spec: BehaviorSpec | None, folder: Path | None
) -> Iterator[tuple[str, Demonstrations | None]]:
    """Yield, for each file, its name for use in messages, and its demonstrations."""
    if path.startswith(PREFIX):
        yield path, read_minari(path.removeprefix(PREFIX), behavior)
        return
    for file in _files(path, behavior, folder):
        yield str(file), READERS[file.suffix](file, behavior, spec)


def _files(path: str, behavior: str, folder: Path | None) -> list[Path]:
    candidates = [absolute(path)] if folder is None else [folder / path, absolute(path)]
    for candidate in candidates:
        if candidate.is_file():
            return [_readable(candidate, path, behavior)]
        if candidate.is_dir():
            return _of_known_kinds([file for file in sorted(candidate.iterdir()) if file.is_file()], path, behavior)
        matches = [Path(name) for name in sorted(glob.glob(str(candidate), recursive=True))]
        if matches:
            return _of_known_kinds([file for file in matches if file.is_file()], path, behavior)
    looked = " and ".join(dict.fromkeys(str(candidate.parent) for candidate in candidates))
    raise StageError(f"{_where(path, behavior)}: no file or folder matches; looked in {looked}")


def _of_known_kinds(files: list[Path], path: str, behavior: str) -> list[Path]:
    readable = [file for file in files if file.suffix in READERS and (file.suffix != ".json" or looks_recorded(file))]
    if not readable:
        for file in files:
            _readable(file, path, behavior)
        if files:
            raise StageError(f"{_where(path, behavior)}: {files[0].name} is not a recording made by Godot's addon")
        raise StageError(f"{_where(path, behavior)}: the folder is empty; expected {_kinds()} files")
    left_out = sorted({file.name for file in files} - {file.name for file in readable})
    if left_out:
        log.info("%s: skipped these files, which are not in a format for demonstrations: %s", path, ", ".join(left_out))
    return without_doubles(readable)


def _readable(file: Path, path: str, behavior: str) -> Path:
    if file.suffix not in READERS:
        why = f"Headrace can't read demonstrations from {file.suffix or 'such'} files"
        raise StageError(f"{_where(path, behavior)}: {file.name}: {why}; expected {_kinds()} files")
    return file


def _kinds() -> str:
    *others, last = READERS
    return f"{', '.join(others)} or {last}"


def _where(path: str, behavior: str) -> str:
    return f"behaviors.{behavior}: demo_path {path!r}"

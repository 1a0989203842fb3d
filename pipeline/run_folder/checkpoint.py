"""A checkpoint on disk: parts written by their hosts, and the manifest that makes them real.

    results/<run-id>/checkpoints/000007/<stage name>.part      one per stage with state
    results/<run-id>/checkpoints/manifest.json                 names the newest whole checkpoint

A part is written under its final name in a folder that no manifest names yet. When all parts are durable, main replaces
the manifest, in one rename; before that the checkpoint does not exist, and afterwards the previous one may be removed.
"""

from __future__ import annotations

import json
import logging
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from pipeline.control.messages import PartSaved
from pipeline.run_folder.atomic_files import REAL, FileOperations, write_atomic

log = logging.getLogger(__name__)

FORMAT = 1
MANIFEST = "manifest.json"
_ARRAY = 1
_KINDS = "biuf"
_MENDING = "; restore the file from a copy, or start over with --force, which archives this run"


class CheckpointError(Exception):
    """A checkpoint can't be used; the message names the file and what is wrong with it."""


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint on disk."""

    number: int
    folder: Path
    parts: Mapping[str, PartSaved]
    steps: Mapping[str, int]
    """Trainer step by behaviour name."""
    progress: Mapping[str, Any]
    """Main's own state: elapsed seconds, seed, lessons, best evaluations."""

    def read(self, name: str) -> Any:
        """Return the state in a part; None if the checkpoint has no such part.

        Raises:
            CheckpointError: if the file is missing or damaged.
        """
        part = self.parts.get(name)
        if part is None:
            return None
        data = self._bytes(part)
        try:
            return unpack_state(data)
        except CheckpointError as error:
            raise CheckpointError(f"{self.folder / part.file}: {error}") from error

    def check(self) -> None:
        """Check that every part is there and undamaged, before anything is started from it.

        Raises:
            CheckpointError: naming the first file that is missing or damaged.
        """
        for part in self.parts.values():
            self._bytes(part)

    def _bytes(self, part: PartSaved) -> bytes:
        path = self.folder / part.file
        try:
            data = path.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{path}: can't be read: {error.strerror}{_MENDING}") from error
        if len(data) != part.size:
            raise CheckpointError(f"{path}: is damaged: it has {len(data)} bytes, {part.size} were written{_MENDING}")
        if zlib.crc32(data) != part.crc32:
            raise CheckpointError(f"{path}: is damaged: its checksum is not that of what was written{_MENDING}")
        return data


def part_file(name: str) -> str:
    """Return the file name of a stage's part; stage names may hold characters that file names must not."""
    return "".join(c if c.isalnum() or c in "-_." else f"%{ord(c):x}" for c in name) + ".part"


def write_part(checkpoints: Path, number: int, name: str, state: Any, files: FileOperations = REAL) -> PartSaved:
    """Write a stage's part of checkpoint `number`, durably.

    Returns:
        The message for main.

    Raises:
        OSError: if the disk refuses.
    """
    data = pack_state(state)
    file, folder = part_file(name), checkpoint_folder(checkpoints, number)
    files.make_folder(folder)
    write_atomic(folder / file, data, files=files)
    return PartSaved(number, name, file, len(data), zlib.crc32(data))


def checkpoint_folder(checkpoints: Path, number: int) -> Path:
    """Return the folder of checkpoint `number`."""
    return checkpoints / f"{number:06d}"


def write_manifest(
    checkpoints: Path,
    number: int,
    parts: Iterable[PartSaved],
    steps: Mapping[str, int],
    progress: Mapping[str, Any],
    files: FileOperations = REAL,
) -> None:
    """Make checkpoint `number` real, then remove the folders that no manifest names any more.

    Raises:
        OSError: if the disk refuses; the previous checkpoint is then still whole and the newest.
    """
    content = {
        "format": FORMAT,
        "number": number,
        "created": time.time(),
        "folder": checkpoint_folder(checkpoints, number).name,
        "steps": dict(steps),
        "progress": dict(progress),
        "parts": {p.name: {"file": p.file, "size": p.size, "crc32": p.crc32} for p in parts},
    }
    write_atomic(checkpoints / MANIFEST, json.dumps(content, indent=2).encode(), files=files)
    try:
        _remove_others(checkpoints, number, files)
    except OSError as error:  # the checkpoint is real all the same; the next one cleans up again
        log.warning("checkpoints that are no longer needed could not be removed: %s", error)


def newest_checkpoint(checkpoints: Path) -> Checkpoint | None:
    """Return the newest whole checkpoint, None if there is none.

    Raises:
        CheckpointError: if the manifest is there but can't be read.
    """
    path = checkpoints / MANIFEST
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT:
            raise CheckpointError(f"{path}: format {content['format']}, this version reads {FORMAT}")
        number = int(content["number"])
        parts = {
            name: PartSaved(number, name, part["file"], int(part["size"]), int(part["crc32"]))
            for name, part in content["parts"].items()
        }
        steps = {str(name): int(step) for name, step in content["steps"].items()}
        return Checkpoint(number, checkpoints / content["folder"], parts, steps, content["progress"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: is no manifest of a checkpoint: {error!r}{_MENDING}") from error


def pack_state(state: Any) -> bytes:
    """Return plain values and NumPy arrays, nested in dicts and lists, as msgpack."""
    return msgpack.packb(state, default=_pack_array, use_bin_type=True)  # type: ignore[no-any-return]


def unpack_state(data: bytes) -> Any:
    """Invert `pack_state`; tuples come back as lists.

    Raises:
        CheckpointError: if the data are no such state.
    """
    try:
        return msgpack.unpackb(data, ext_hook=_unpack_array, raw=False, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise CheckpointError(f"not a state: {error!r}") from error


def _pack_array(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in _KINDS:
        inner = [value.dtype.str, list(value.shape), np.ascontiguousarray(value).tobytes()]
        return msgpack.ExtType(_ARRAY, msgpack.packb(inner, use_bin_type=True))
    if isinstance(value, np.generic) and value.dtype.kind in _KINDS:
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a state may hold plain values and number arrays, got {type(value).__name__}")


def _unpack_array(code: int, data: bytes) -> Any:
    if code != _ARRAY:
        raise ValueError(f"unknown extension type {code}")
    dtype, shape, raw = msgpack.unpackb(data, raw=False)
    kind = np.dtype(dtype)
    if kind.kind not in _KINDS:
        raise ValueError(f"array of dtype {dtype!r}")
    return np.frombuffer(raw, kind).reshape(shape).copy()


def _remove_others(checkpoints: Path, number: int, files: FileOperations) -> None:
    keep = checkpoint_folder(checkpoints, number).name
    for name in files.listdir(checkpoints):
        if name != keep and name.isdigit():
            files.remove_tree(checkpoints / name)

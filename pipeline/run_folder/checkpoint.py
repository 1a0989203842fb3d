"""A checkpoint on disk: the parts that hosts write, and the manifest that commits them.

    results/<run-id>/checkpoints/000007/<stage name>.part      one per stage with state
    results/<run-id>/checkpoints/000007/manifest.json          lists the parts, with its own checksum
    results/<run-id>/checkpoints/000008.unfinished/            parts of a checkpoint in progress
    results/<run-id>/checkpoints/manifest.json                 copy of the newest checkpoint's manifest

When all parts are durable, main writes the manifest next to them and drops `.unfinished` from the folder's name in one
rename. So a folder with a plain number was complete once, and a missing file means damage. `resuming` chooses among the
checkpoints.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from headrace.config.file_names import portable
from headrace.pipeline.control import PartSaved
from headrace.pipeline.run_folder.atomic_files import REAL, FileOperations, write_atomic
from headrace.queues.packing import pack, unpack
from headrace.queues.windows_files import once_released
from headrace.stages.errors import StageError, type_of

log = logging.getLogger(__name__)

FORMAT = 1
MANIFEST = "manifest.json"
MENDING = (
    "restore the file from a copy; or start over with --force, which archives this run; or start a new run with a "
    "different --run-id from this run's newest policy, with --initialize-from"
)
PART_SUFFIX = ".part"
_UNFINISHED = ".unfinished"
_CHECKSUM = "checksum"


class CheckpointError(Exception):
    """Raised if a checkpoint is unusable; the message names the file and says what is wrong with it."""


class CheckpointFormatError(CheckpointError):
    """Raised if a checkpoint is not damaged, but has a different version of the format."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    number: int
    folder: Path
    parts: Mapping[str, PartSaved]
    steps: Mapping[str, int]
    """Trainer step, keyed by behaviour name."""
    progress: Mapping[str, Any]
    """Main's state: elapsed seconds, seed, lessons, best evaluations."""
    manifest: Path = Path(MANIFEST)
    """Path of the manifest from which the checkpoint was read."""

    def read(self, name: str) -> Any:
        """Return the state in a part; None if the checkpoint does not have the part.

        Raises:
            CheckpointError: if the file is missing or damaged.
        """
        part = self.parts.get(name)
        if part is None:
            return None
        try:
            data = self._bytes(part)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; {MENDING}") from error
        try:
            return unpack_state(data)
        except CheckpointError as error:
            raise CheckpointError(f"{self.folder / part.file}: {error}") from error

    def check(self) -> None:
        """Check that every part exists and is undamaged, before the run resumes.

        Raises:
            CheckpointError: if a file is missing or damaged; the message names the first one.
        """
        for part in self.parts.values():
            self._bytes(part)

    def _bytes(self, part: PartSaved) -> bytes:
        path = self.folder / part.file
        try:
            data = once_released(path.read_bytes)
        except OSError as error:
            raise CheckpointError(f"{path} can't be read: {error.strerror}") from error
        if len(data) != part.size:
            raise CheckpointError(f"{path} is damaged: it has {len(data)} bytes, but {part.size} were written")
        if zlib.crc32(data) != part.crc32:
            raise CheckpointError(f"{path} is damaged: its checksum does not match its content")
        return data


def part_file(name: str) -> str:
    """Return the file name of a stage's part. Stage names may contain characters that file names can't."""
    return portable("".join(c if c.isalnum() or c in "-_." else f"%{ord(c):x}" for c in name) + PART_SUFFIX)


def write_part(checkpoints: Path, number: int, name: str, state: Any, files: FileOperations = REAL) -> PartSaved:
    """Write a stage's part of checkpoint `number`, durably.

    Returns:
        The message that reports the part to main.

    Raises:
        OSError: if the part can't be written.
    """
    data = pack_state(state)
    file, folder = part_file(name), unfinished_folder(checkpoints, number)
    files.make_folder(folder)
    write_atomic(folder / file, data, files=files)
    return PartSaved(number, name, file, len(data), zlib.crc32(data))


def checkpoint_folder(checkpoints: Path, number: int) -> Path:
    """Return the folder of checkpoint `number`, which exists once the checkpoint is complete."""
    return checkpoints / f"{number:06d}"


def unfinished_folder(checkpoints: Path, number: int) -> Path:
    """Return the folder that collects the parts of checkpoint `number`."""
    return checkpoints / f"{number:06d}{_UNFINISHED}"


def write_manifest(
    checkpoints: Path,
    number: int,
    parts: Iterable[PartSaved],
    steps: Mapping[str, int],
    progress: Mapping[str, Any],
    files: FileOperations = REAL,
    keep: int = 2,
) -> None:
    """Commit checkpoint `number`, then remove all but the newest `keep`.

    Raises:
        OSError: if the manifest can't be written; earlier checkpoints remain complete.
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
    content[_CHECKSUM] = checksum_of(json.loads(json.dumps(content)))  # as it will be read back, with strings as keys
    data = json.dumps(content, indent=2).encode()
    unfinished = unfinished_folder(checkpoints, number)
    files.make_folder(unfinished)
    files.write_file(unfinished / MANIFEST, data)
    files.sync_folder(unfinished)
    files.replace(unfinished, checkpoint_folder(checkpoints, number))
    files.sync_folder(checkpoints)
    try:  # the checkpoint is committed even if this fails; the next checkpoint tries again
        write_atomic(checkpoints / MANIFEST, data, files=files)
    except OSError as error:
        log.warning("%s could not be updated; checkpoint %d is complete nevertheless: %s", MANIFEST, number, error)
    try:
        _remove_superseded(checkpoints, number, keep, files)
    except OSError as error:
        log.warning("checkpoints that are no longer needed could not be removed: %s", error)


def newest_checkpoint(checkpoints: Path) -> Checkpoint | None:
    """Return the newest checkpoint with a valid manifest, without checking its parts; None if none was ever complete.

    Raises:
        CheckpointError: if there are checkpoints, but none of their manifests is readable.
    """
    defects = []
    for found in each_checkpoint(checkpoints):
        if isinstance(found, Checkpoint):
            return found
        defects.append(found)
    if defects:
        raise CheckpointError("; ".join(f"{defect}" for defect in defects) + f"; {MENDING}")
    return None


def each_checkpoint(checkpoints: Path) -> Iterator[Checkpoint | CheckpointError]:
    """Yield the checkpoints in a folder, newest first; for an unusable manifest, yield the error instead.

    Raises:
        CheckpointFormatError: if a checkpoint has a different version of the format.
    """
    copied = _copied_manifest(checkpoints)
    numbers = set(numbered_folders(checkpoints))
    if isinstance(copied, Checkpoint):
        numbers.add(copied.number)
    elif copied is not None and not numbers:
        yield copied
    for number in sorted(numbers, reverse=True):
        try:
            yield _read_manifest(checkpoint_folder(checkpoints, number) / MANIFEST, checkpoints, number)
        except CheckpointFormatError:
            raise
        except CheckpointError as error:
            yield copied if isinstance(copied, Checkpoint) and copied.number == number else error


def numbered_folders(checkpoints: Path) -> list[int]:
    """Return the numbers of all checkpoints that were ever complete, as given by the folders' names."""
    try:
        return [int(entry.name) for entry in checkpoints.iterdir() if entry.name.isdecimal()]
    except FileNotFoundError:
        return []


def holds_checkpoint(checkpoints: Path) -> bool:
    """Return True if a folder contains any checkpoint, even a damaged or unfinished one."""
    unfinished = any(checkpoints.glob(f"*{_UNFINISHED}"))
    return unfinished or (checkpoints / MANIFEST).exists() or bool(numbered_folders(checkpoints))


def remove_unfinished(checkpoints: Path, files: FileOperations = REAL, but: int = -1) -> None:
    """Remove the parts of failed checkpoints, except those of checkpoint `but`.

    Raises:
        OSError: if a file can't be removed.
    """
    kept = unfinished_folder(checkpoints, but)
    for folder in sorted(checkpoints.glob(f"*{_UNFINISHED}")):
        if folder != kept:
            files.remove_tree(folder)


def pack_state(state: Any, name: str = "state") -> bytes:
    """Encode plain values and NumPy arrays, nested in dicts, lists and tuples, as msgpack.

    Args:
        state: the state.
        name: what messages call it.

    Raises:
        StageError: if the state contains anything else; the message names its keys.
    """
    try:
        return _pack(state)
    except _UNPACKABLE:
        raise StageError(_refusal(state, name)) from None


def unpack_state(data: bytes) -> Any:
    """Decode the result of `pack_state`.

    Raises:
        CheckpointError: if `data` is not a packed state.
    """
    try:
        return _unpack(data)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise CheckpointError(f"not a valid state: {error!r}") from error


_ARRAY, _INTEGER, _TUPLE = 1, 2, 3
"""Codes of the extension types for values that msgpack does not have."""
_KINDS = "biuf"
_PLAIN: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    *((float, float), (str, str.__str__), (bytes, bytes), (list, list)),
    (Mapping, dict),
)
"""Types, and functions that convert instances of their subclasses, such as a `Counter`, to plain values."""
_UNPACKABLE = (TypeError, ValueError, OverflowError, RecursionError)


def _pack(value: Any) -> bytes:
    return pack(value, default=_pack_other, strict_types=True)  # type: ignore[no-any-return]


def _pack_other(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind in _KINDS:
        inner = [value.dtype.str, list(value.shape), np.ascontiguousarray(value).tobytes()]
        return msgpack.ExtType(_ARRAY, _pack(inner))
    if isinstance(value, np.generic) and value.dtype.kind in _KINDS:
        return value.item()
    if isinstance(value, tuple):
        return msgpack.ExtType(_TUPLE, _pack(list(value)))
    if isinstance(value, int):
        number = int(value)  # of an `IntEnum`, for example
        return number if -(2**63) <= number < 2**64 else msgpack.ExtType(_INTEGER, f"{number:x}".encode())
    for kind, convert in _PLAIN:
        if isinstance(value, kind):
            return convert(value)
    raise TypeError(f"{type(value).__name__} is not a plain value")


def _refusal(value: Any, where: str) -> str:
    """Return why a value can't be packed, with the keys of the innermost part that can't."""
    if where.count("[") > 30:
        return f"{where} is nested too deeply, or contains itself"
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, item in inner:
        for part, at in ((key, f"a key of {where}"), (item, f"{where}[{key!r}]")):
            try:
                _pack(part)
            except _UNPACKABLE:
                return _refusal(part, at)
    what = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type_of(value)
    return (
        f"{where} is {what}, which can't be saved; convert it to plain values (None, bool, int, float, str, bytes) or "
        "NumPy arrays of numbers, nested in dicts, lists and tuples"
    )


def _unpack(data: bytes) -> Any:
    return unpack(data, ext_hook=_unpack_other)


def _unpack_other(code: int, data: bytes) -> Any:
    if code == _INTEGER:
        return int(data, 16)
    if code == _TUPLE:
        return tuple(_unpack(data))
    if code != _ARRAY:
        raise ValueError(f"unknown extension type {code}")
    dtype, shape, raw = msgpack.unpackb(data, raw=False)
    kind = np.dtype(dtype)
    if kind.kind not in _KINDS:
        raise ValueError(f"array of dtype {dtype!r}")
    return np.frombuffer(raw, kind).reshape(shape).copy()


def _copied_manifest(checkpoints: Path) -> Checkpoint | CheckpointError | None:
    """Return the checkpoint according to the manifest next to the folders."""
    path = checkpoints / MANIFEST
    try:
        return _read_manifest(path, checkpoints)
    except CheckpointFormatError:
        if not numbered_folders(checkpoints):
            raise
        return None
    except CheckpointError as error:
        return error if path.exists() else None


def _read_manifest(path: Path, checkpoints: Path, expected: int | None = None) -> Checkpoint:
    try:
        content = json.loads(once_released(path.read_bytes))
        stated = content.pop(_CHECKSUM, None)
        if stated != checksum_of(content):
            raise CheckpointError(f"{path} is damaged: its checksum does not match its content")
        if content["format"] != FORMAT:
            raise CheckpointFormatError(
                f"{path} has format {content['format']}, but this version of Headrace reads format {FORMAT}"
            )
        number = int(content["number"])
        if expected not in (None, number):
            raise CheckpointError(f"{path} is the manifest of checkpoint {number}, not of checkpoint {expected}")
        parts = {
            name: PartSaved(number, name, part["file"], int(part["size"]), int(part["crc32"]))
            for name, part in content["parts"].items()
        }
        folder = checkpoint_folder(checkpoints, number)
        if content["folder"] != folder.name or any(Path(part.file).name != part.file for part in parts.values()):
            raise CheckpointError(f"{path} is damaged: it names files outside {folder}")
        steps = {str(name): int(step) for name, step in content["steps"].items()}
        return Checkpoint(number, folder, parts, steps, content["progress"], path)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a checkpoint manifest: {error!r}") from error


def checksum_of(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a file's content, without its checksum entry, as compact JSON with sorted keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _remove_superseded(checkpoints: Path, newest: int, keep: int, files: FileOperations) -> None:
    """Of the checkpoints up to `newest`, remove all but the last `keep`; each folder is first renamed as unfinished."""
    older = sorted((number for number in numbered_folders(checkpoints) if number <= newest), reverse=True)
    for number in older[keep:]:
        unfinished = unfinished_folder(checkpoints, number)
        files.remove_tree(unfinished)
        files.replace(checkpoint_folder(checkpoints, number), unfinished)
    remove_unfinished(checkpoints, files)

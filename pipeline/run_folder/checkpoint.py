"""A checkpoint on disk: the parts that hosts write, and the manifest that commits them.

    results/<run-id>/checkpoints/000007/<stage name>.part      one per stage with state
    results/<run-id>/checkpoints/000007/manifest.json          lists the parts, with its own checksum
    results/<run-id>/checkpoints/000008.unfinished/            parts of a checkpoint in progress

When all parts are durable, main writes the manifest next to them and drops `.unfinished` from the folder's name in one
rename. So a folder with a plain number was complete once, and a missing file means damage. `resuming` chooses among the
checkpoints. In main, `CheckpointAssembler` begins a checkpoint, collects the hosts' parts, and commits the checkpoint
once all have arrived.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from headrace.config.paths import portable
from headrace.pipeline.control import PartSaved
from headrace.queues.codec import pack, unpack
from headrace.queues.files import REAL, FileOperations, is_held, matching, read_file, write_atomic
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
            data = read_file(path)
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
    unfinished = unfinished_folder(checkpoints, number)
    files.make_folder(unfinished)
    files.write_file(unfinished / MANIFEST, json.dumps(content, indent=2).encode())
    files.sync_folder(unfinished)
    files.replace(unfinished, checkpoint_folder(checkpoints, number))
    files.sync_folder(checkpoints)
    try:
        _remove_superseded(checkpoints, number, keep, files)
    except OSError as error:  # the checkpoint is committed nevertheless; the next checkpoint tries again
        log.warning("checkpoints that are no longer needed could not be removed: %s", error)


def newest_checkpoint(checkpoints: Path) -> Checkpoint | None:
    """Return the newest checkpoint with a valid manifest, without checking its parts; None if none was ever complete.

    Raises:
        CheckpointError: if there are checkpoints, but none of their manifests is readable.
    """
    defects = []
    for checkpoint in each_checkpoint(checkpoints):
        if isinstance(checkpoint, Checkpoint):
            return checkpoint
        defects.append(checkpoint)
    if defects:
        raise CheckpointError("; ".join(f"{defect}" for defect in defects) + f"; {MENDING}")
    return None


def each_checkpoint(checkpoints: Path) -> Iterator[Checkpoint | CheckpointError]:
    """Yield the checkpoints in a folder, newest first; for an unusable manifest, yield the error instead.

    Raises:
        CheckpointFormatError: if a checkpoint has a different version of the format.
    """
    for number in sorted(numbered_folders(checkpoints), reverse=True):
        try:
            yield _read_manifest(checkpoint_folder(checkpoints, number), number)
        except CheckpointFormatError:
            raise
        except CheckpointError as error:
            yield error


def numbered_folders(checkpoints: Path) -> list[int]:
    """Return the numbers of all checkpoints that were ever complete, as given by the folders' names."""
    try:
        return [int(name) for name in REAL.listdir(checkpoints) if name.isdecimal()]
    except FileNotFoundError:
        return []


def holds_checkpoint(checkpoints: Path) -> bool:
    """Return True if a folder contains any checkpoint, even a damaged or unfinished one."""
    return bool(matching(checkpoints, f"*{_UNFINISHED}")) or bool(numbered_folders(checkpoints))


def remove_unfinished(checkpoints: Path, files: FileOperations = REAL, but: int = -1) -> None:
    """Remove the parts of failed checkpoints, except those of checkpoint `but`.

    Raises:
        OSError: if a file can't be removed.
    """
    kept = unfinished_folder(checkpoints, but)
    for folder in matching(checkpoints, f"*{_UNFINISHED}"):
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


def _read_manifest(folder: Path, number: int) -> Checkpoint:
    path = folder / MANIFEST
    try:
        content = json.loads(read_file(path))
        stated = content.pop(_CHECKSUM, None)
        if stated != checksum_of(content):
            raise CheckpointError(f"{path} is damaged: its checksum does not match its content")
        if content["format"] != FORMAT:
            raise CheckpointFormatError(
                f"{path} has format {content['format']}, but this version of Headrace reads format {FORMAT}"
            )
        if content["number"] != number:
            raise CheckpointError(
                f"{path} is the manifest of checkpoint {content['number']}, not of checkpoint {number}"
            )
        parts = {
            name: PartSaved(number, name, part["file"], int(part["size"]), int(part["crc32"]))
            for name, part in content["parts"].items()
        }
        if any(Path(part.file).name != part.file for part in parts.values()):
            raise CheckpointError(f"{path} is damaged: it names files outside {folder}")
        steps = {str(name): int(step) for name, step in content["steps"].items()}
        return Checkpoint(number, folder, parts, steps, content["progress"])
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


PATIENCE_S = 120.0
"""Seconds without progress after which a checkpoint is abandoned. The next one starts afresh."""


@dataclass
class _UnfinishedCheckpoint:
    number: int
    expected: frozenset[str]
    since_s: float
    parts: dict[str, PartSaved] = field(default_factory=dict)


class CheckpointAssembler:
    """Assembles at most one checkpoint at a time.

    Args:
        folder: `results/<run-id>/checkpoints`.
        last: number of the checkpoint from which the run resumes; -1 for a new run.
        files: file operations.
        keep: number of complete checkpoints to keep.
    """

    def __init__(self, folder: Path, last: int = -1, files: FileOperations = REAL, keep: int = 2) -> None:
        self._folder = folder
        self._files = files
        self._keep = keep
        self._pending: _UnfinishedCheckpoint | None = None
        self._next = last + 1
        self.newest = last
        """Number of the newest complete checkpoint; -1 if there is none."""

    @property
    def pending(self) -> int | None:
        """Number of the checkpoint in progress; None if there is none."""
        return self._pending.number if self._pending is not None else None

    @property
    def missing(self) -> list[str]:
        """Names of the parts that are missing from the checkpoint in progress."""
        return sorted(self._pending.expected - self._pending.parts.keys()) if self._pending else []

    def move(self, folder: Path) -> None:
        """Continue in a different folder, which has no checkpoints yet. Abandon the checkpoint in progress."""
        self._folder, self._pending, self.newest = folder, None, -1

    def begin(self, expected: Iterable[str], now_s: float) -> int:
        """Begin the next checkpoint and return its number. Abandon any checkpoint in progress."""
        self._pending = _UnfinishedCheckpoint(self._next, frozenset(expected), now_s)
        self._next += 1
        number = self._pending.number
        with contextlib.suppress(OSError):  # hosts also create the folder, and report errors
            self._files.make_folder(unfinished_folder(self._folder, number))  # shows that a checkpoint has started
            remove_unfinished(self._folder, self._files, but=number)
        return number

    def expect(self, parts: Iterable[str]) -> None:
        """Require these additional parts for the checkpoint in progress."""
        if self._pending is not None:
            self._pending.expected |= frozenset(parts)

    def leave_out(self, parts: Iterable[str]) -> None:
        """Complete the checkpoint in progress without these parts."""
        if self._pending is not None:
            self._pending.expected -= frozenset(parts)

    def progressed(self, now_s: float) -> None:
        """Restart the time limit for the checkpoint in progress."""
        if self._pending is not None:
            self._pending.since_s = now_s

    def add(self, part: PartSaved) -> bool:
        """Add a part that is on disk; return True if no other part is missing."""
        pending = self._pending
        if pending is None or part.number != pending.number:
            return False
        pending.parts[part.name] = part
        return pending.expected <= pending.parts.keys()

    def carry_over(self, parts: Iterable[PartSaved]) -> None:
        """Link missing parts, and the files next to them, from the newest checkpoint into the one in progress.

        Raises:
            FileNotFoundError: if a file no longer exists.
            OSError: if a file can't be linked or copied.
        """
        pending = self._pending
        assert pending is not None, "a checkpoint is in progress"
        carried = {part.name: part for part in parts if part.name not in pending.parts}
        old, new = checkpoint_folder(self._folder, self.newest), unfinished_folder(self._folder, pending.number)
        beside = {name for name in self._files.listdir(old) if not name.endswith(PART_SUFFIX) and name != MANIFEST}
        for file in sorted((beside | {part.file for part in carried.values()}).difference(self._files.listdir(new))):
            self._files.link(old / file, new / file)
        pending.parts |= carried

    def commit(self, steps: Mapping[str, int], progress: Mapping[str, Any]) -> int:
        """Commit the complete checkpoint and return its number.

        Raises:
            OSError: if the manifest can't be written; in this case, the previous checkpoint remains the newest. If
                another program has a file open, the checkpoint stays in progress, and can be committed again.
        """
        pending, self._pending = self._pending, None
        assert pending is not None, "commit follows add, when that says that the checkpoint is complete"
        parts = pending.parts.values()
        try:
            write_manifest(self._folder, pending.number, parts, steps, progress, self._files, self._keep)
        except OSError as error:
            if is_held(error):  # nothing has changed, and the next attempt may succeed
                self._pending = pending
            else:
                self._make_room()
            raise
        self.newest = pending.number
        return pending.number

    def give_up(self, number: int) -> bool:
        """Abandon a checkpoint that can't get all its parts; return True if it was in progress."""
        if self._pending is None or self._pending.number != number:
            return False
        self._pending = None
        self._make_room()
        return True

    def give_up_if_overdue(self, now_s: float, patience_s: float = PATIENCE_S) -> bool:
        """Abandon the checkpoint in progress if it made no progress for `patience_s`; return True if abandoned."""
        pending = self._pending
        if pending is not None and now_s - pending.since_s > patience_s:
            log.warning(
                "checkpoint %d abandoned: no progress for %.0f s; still missing: %s",
                pending.number,
                patience_s,
                ", ".join(self.missing) or "the disk",
            )
            self._pending = None
            return True
        return False

    def _make_room(self) -> None:
        """Remove the parts of failed checkpoints, which may have failed because the disk is full."""
        with contextlib.suppress(OSError):
            remove_unfinished(self._folder, self._files)

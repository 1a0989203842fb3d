"""The file of a replay memory: its columns as they lie in memory, with checksums.

Written and read straight from and to the memory's own arrays, so that a large one is never in memory twice. The file
is there whole or not at all: it is written under another name, made durable, and renamed.

Layout: `MAGIC`, length of the header (8 bytes), header (JSON), its CRC-32 (4 bytes), then of each column its bytes and
their CRC-32. Numbers are little-endian, as all platforms that torch runs on are.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Array
from headrace.stages.trainer.replay_columns import LazyColumn

MAGIC = b"headrace replay 1\n"

_FORMER_NAMES = {"buffer_size": "capacity"}
"""Facts that files of this version name otherwise than the YAML."""

_CHUNK_BYTES = 2**24
_MOST_HEADER_BYTES = 2**26


class SavedMemory(Protocol):
    """A replay memory that can be written to a file."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """The keys of the YAML that decide its shape: in a file they have to be the same."""
        ...

    def facts(self) -> dict[str, Any]:
        """All else but the columns: numbers and lists of numbers."""
        ...

    def columns(self) -> list[tuple[LazyColumn, int]]:
        """All columns, and the number of their first rows in use."""
        ...

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Restore `facts()`; after it the columns are to be filled in, and `restored` to be called."""
        ...

    def restored(self) -> None:
        """Go on, once all columns are filled in."""
        ...

    def clear(self) -> None:
        """Forget everything."""
        ...


class ReplayFileError(Exception):
    """A replay file can't be read, or belongs to another memory; the message says why."""


def write_replay(memory: SavedMemory, path: Path, step: int = 0) -> None:
    """Write a memory into a file, replacing it.

    Args:
        memory: the memory.
        path: the file.
        step: the trainer's step, by which the file is known to belong to the rest of its checkpoint.

    Raises:
        OSError: if the disk refuses; an older file is then still there.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with temporary.open("wb", buffering=0) as file:
            _write(memory, file, step)
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


def read_replay(memory: SavedMemory, path: Path, step: int = 0) -> None:
    """Fill a memory with what `write_replay` wrote at the same step. If that fails it is empty.

    Raises:
        ReplayFileError: if the file is missing, cut short, changed, or of another memory or step.
    """
    try:
        with path.open("rb", buffering=0) as file:
            _read(memory, file, step)
    except (OSError, ReplayFileError) as error:
        memory.clear()
        raise ReplayFileError(f"{path}: {error.strerror if isinstance(error, OSError) else error}") from error
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        memory.clear()  # the checksums are right, so somebody else has written it
        raise ReplayFileError(f"{path}: not a replay buffer: {error!r}") from error


def _write(memory: SavedMemory, file: IO[bytes], step: int) -> None:
    header = json.dumps({"facts": memory.facts(), "columns": _described(memory), "step": step}).encode()
    _write_all(file, MAGIC + struct.pack("<Q", len(header)) + header + struct.pack("<I", zlib.crc32(header)))
    for column, rows in memory.columns():
        checksum = 0
        for chunk in _chunks(column, rows):
            _write_all(file, chunk)
            checksum = zlib.crc32(chunk, checksum)
        _write_all(file, struct.pack("<I", checksum))


def _read(memory: SavedMemory, file: IO[bytes], step: int) -> None:
    if _take(file, len(MAGIC)) != MAGIC:
        raise ReplayFileError("not a replay buffer of this version")
    (length,) = struct.unpack("<Q", _take(file, 8))
    header = _take(file, min(length, _MOST_HEADER_BYTES))
    if zlib.crc32(header) != struct.unpack("<I", _take(file, 4))[0]:
        raise ReplayFileError("its header is broken")
    saved = json.loads(header)
    if saved.get("step", step) != step:  # older versions did not write it
        raise ReplayFileError(f"it was saved at step {saved['step']}, the trainer at step {step}")
    for name, now in memory.sizes.items():
        then = saved["facts"][_FORMER_NAMES.get(name, name)]
        if then != now:
            raise ReplayFileError(f"it was saved with {name} {then}, now it is {now}")
    memory.restore(saved["facts"])
    if saved["columns"] != _described(memory):
        raise ReplayFileError("it holds other observations or actions than the environment has now")
    for column, rows in memory.columns():
        checksum = 0
        for chunk in _chunks(column, rows):
            _fill(file, chunk)
            checksum = zlib.crc32(chunk, checksum)
        if checksum != struct.unpack("<I", _take(file, 4))[0]:
            raise ReplayFileError(f"its column {column.name} is broken")
    if file.read(1):
        raise ReplayFileError("it is longer than it should be")
    memory.restored()


def _described(memory: SavedMemory) -> list[list[Any]]:
    return [[column.name, column.dtype.str, list(column.shape), rows] for column, rows in memory.columns()]


def _chunks(column: LazyColumn, rows: int) -> Iterator[memoryview]:
    """A column's first rows as bytes, in the memory's own arrays."""
    for part in column.parts(rows):
        data = _as_bytes(part)
        for at in range(0, len(data), _CHUNK_BYTES):
            yield data[at : at + _CHUNK_BYTES]


def _as_bytes(part: Array) -> memoryview:
    data: NDArray[np.uint8] = part.reshape(-1).view(np.uint8)
    return memoryview(data)  # type: ignore[arg-type]  # an array is a buffer


def _write_all(file: IO[bytes], data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:  # a large write may be cut short
        rest = rest[file.write(rest) :]


def _take(file: IO[bytes], count: int) -> bytes:
    data = bytearray(count)
    _fill(file, memoryview(data))
    return bytes(data)


def _fill(file: IO[bytes], target: memoryview) -> None:
    while target:
        count = file.readinto(target)  # type: ignore[attr-defined]  # IO[bytes] of an unbuffered file is a RawIOBase
        if not count:
            raise ReplayFileError("it is cut short")
        target = target[count:]


def _sync_folder(folder: Path) -> None:
    """Make the renaming durable, where the platform can (Windows journals it)."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems can't do it for folders
            os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""The file that stores a replay memory."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Array
from headrace.queues.windows_files import write_all, write_whole

# The file is written from, and read into, the memory's own arrays, so a large memory is never held twice. The file is
# either complete or absent: it is written under a temporary name, synced to disk, and renamed. Its layout is: `MAGIC`,
# length of the header (8 bytes), header (JSON), its CRC-32 (4 bytes), then each column's bytes and their CRC-32.
# Numbers are little-endian, like all platforms that torch runs on.
MAGIC = b"headrace replay\n"
FORMAT = 1

_CHUNK_BYTES = 2**24
_MOST_HEADER_BYTES = 2**26


class SavedColumn(Protocol):
    """A column of a replay memory, such as a `LazyColumn`."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def parts(self, rows: int) -> Iterator[Array]:
        """Yield the first `rows` rows as views of contiguous arrays."""
        ...


class SavedMemory(Protocol):
    """A replay memory that can be written to a file."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """The YAML settings that determine the memory's shape; a file must have the same values."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return everything except the columns, as numbers and lists of numbers."""
        ...

    def columns(self) -> Sequence[tuple[SavedColumn, int]]:
        """Return all columns, each with the number of leading rows in use."""
        ...

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Restore `facts()`; the caller must then fill the columns and call `restored`."""
        ...

    def restored(self) -> None:
        """Finish restoring, once all columns are filled."""
        ...

    def clear(self) -> None:
        """Remove all rows."""
        ...


class ReplayFileError(Exception):
    """Raised if a replay file can't be read or belongs to a different memory; the message says why."""


# msgpack cannot hold gigabytes, so the memory is a separate file (docs/decisions/046).
def write_replay(memory: SavedMemory, path: Path, step: int = 0) -> None:
    """Write a memory to a file, replacing any older file.

    Args:
        memory: the memory.
        path: the file.
        step: the trainer's step, which identifies the checkpoint that the file belongs to.

    Raises:
        OSError: if the file can't be written; an older file is then kept.
    """
    write_whole(path, lambda file: _write(memory, file, step))


def read_replay(memory: SavedMemory, path: Path, step: int = 0) -> None:
    """Fill a memory from a file that `write_replay` wrote at the same step; after a failure, the memory is empty.

    Raises:
        ReplayFileError: if the file is missing, truncated or modified, or belongs to a different memory or step.
    """
    try:
        with path.open("rb", buffering=0) as file:
            _read(memory, file, step)
    except (OSError, ReplayFileError) as error:
        memory.clear()
        raise ReplayFileError(f"{path}: {error.strerror if isinstance(error, OSError) else error}") from error
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        memory.clear()  # the checksums are right, so the file comes from another program
        raise ReplayFileError(f"{path}: not a replay buffer: {error!r}") from error


def _write(memory: SavedMemory, file: IO[bytes], step: int) -> None:
    described = {"format": FORMAT, "facts": memory.facts(), "columns": _described(memory), "step": step}
    header = json.dumps(described).encode()
    write_all(file, MAGIC + struct.pack("<Q", len(header)) + header + struct.pack("<I", zlib.crc32(header)))
    for column, rows in memory.columns():
        checksum = 0
        for chunk in chain.from_iterable(map(_chunks, column.parts(rows))):
            write_all(file, chunk)
            checksum = zlib.crc32(chunk, checksum)
        write_all(file, struct.pack("<I", checksum))


def _read(memory: SavedMemory, file: IO[bytes], step: int) -> None:
    if _take(file, len(MAGIC)) != MAGIC:
        raise ReplayFileError("not a replay buffer file written by Headrace")
    (length,) = struct.unpack("<Q", _take(file, 8))
    header = _take(file, min(length, _MOST_HEADER_BYTES))
    if zlib.crc32(header) != struct.unpack("<I", _take(file, 4))[0]:
        raise ReplayFileError("the file's header is corrupt")
    saved = json.loads(header)
    if saved["format"] != FORMAT:
        raise ReplayFileError(
            f"the file has format {saved['format']}, but this version of Headrace reads format {FORMAT}"
        )
    if saved["step"] != step:
        raise ReplayFileError(f"the file was saved at step {saved['step']}, but the trainer is at step {step}")
    for name, now in memory.sizes.items():
        then = saved["facts"][name]
        if then != now:
            raise ReplayFileError(f"the file was saved with {name} {then}, which is now {now}")
    memory.restore(saved["facts"])
    if saved["columns"] != _described(memory):
        raise ReplayFileError(
            "its observations or actions differ from the environment's, or hindsight has been switched on or off "
            "since then"
        )
    for column, rows in memory.columns():
        checksum = 0
        for chunk in chain.from_iterable(map(_chunks, column.parts(rows))):
            _fill(file, chunk)
            checksum = zlib.crc32(chunk, checksum)
        if checksum != struct.unpack("<I", _take(file, 4))[0]:
            raise ReplayFileError(f"the file's column {column.name} is corrupt")
    if file.read(1):
        raise ReplayFileError("the file is longer than expected")
    memory.restored()


def _described(memory: SavedMemory) -> list[list[Any]]:
    return [[column.name, column.dtype.str, list(column.shape), rows] for column, rows in memory.columns()]


def _chunks(part: Array) -> Iterator[memoryview]:
    """Yield an array's memory in chunks of bytes, without copying."""
    data = _as_bytes(part)
    for at in range(0, len(data), _CHUNK_BYTES):
        yield data[at : at + _CHUNK_BYTES]


def _as_bytes(part: Array) -> memoryview:
    data: NDArray[np.uint8] = part.reshape(-1).view(np.uint8)
    return memoryview(data)  # type: ignore[arg-type]  # an array is a buffer


def _take(file: IO[bytes], count: int) -> bytes:
    data = bytearray(count)
    _fill(file, memoryview(data))
    return bytes(data)


def _fill(file: IO[bytes], target: memoryview) -> None:
    while target:
        count = file.readinto(target)  # type: ignore[attr-defined]  # IO[bytes] of an unbuffered file is a RawIOBase
        if not count:
            raise ReplayFileError("the file is truncated")
        target = target[count:]

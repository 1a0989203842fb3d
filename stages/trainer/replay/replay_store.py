"""Columns of a replay memory, which allocate memory only as they fill, and the file format that stores them."""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.queues.columns import Column
from headrace.queues.messages import Array
from headrace.queues.windows_files import write_all, write_whole
from headrace.stages.policy.observations import EncodedObservations, ObservationLayout

Index = NDArray[np.int64]

BLOCK_BYTES = 2**30
_FIRST_SLOTS = 1024


class LazyColumn:
    """Rows of one shape and dtype, in blocks that are allocated when first written to.

    On Linux, `np.empty` of a large array costs nothing until its pages are written. But a system may refuse to reserve
    more memory than it has, and 10^6 images of 84×84×4 take 28 GB. Blocks are therefore limited to `block_bytes`. A
    column that fits into one block, as vectors usually do, is a single array, so gathering from it is one operation.

    Args:
        column: name, dtype and shape of a row.
        capacity: the maximum number of rows.
        block_bytes: the maximum size of a block in bytes (but at least one row).
    """

    def __init__(self, column: Column, capacity: int, block_bytes: int = BLOCK_BYTES) -> None:
        self.name = column.name
        self.dtype = np.dtype(column.dtype)
        self.shape = column.shape
        row_bytes = max(1, self.dtype.itemsize * math.prod(column.shape))
        self._capacity = capacity
        self._rows = max(1, min(capacity, block_bytes // row_bytes))
        self._blocks: list[Array] = []

    def take(self, index: Index) -> Array:
        """Return rows [n, *shape] that have been written, as a new array."""
        if len(self._blocks) == 1:
            return self._blocks[0].take(index, axis=0)
        out = np.empty((len(index), *self.shape), self.dtype)
        for block, chosen, at in self._by_block(index):
            out[chosen] = block[at]
        return out

    def put(self, index: Index, rows: Array) -> None:
        """Write rows [n, *shape] to positions [n], each below the capacity."""
        if not len(index):
            return
        self._reach(int(index.max()) + 1)
        if len(self._blocks) == 1:
            self._blocks[0][index] = rows
            return
        for block, chosen, at in self._by_block(index):
            block[at] = rows[chosen]

    def parts(self, rows: int) -> Iterator[Array]:
        """Yield the first `rows` rows as views of contiguous arrays, allocating blocks that were never written to."""
        self._reach(rows)
        for block in self._blocks:
            yield block[: max(0, rows)]
            rows -= len(block)

    def _reach(self, rows: int) -> None:
        while len(self._blocks) * self._rows < rows:
            left = self._capacity - len(self._blocks) * self._rows
            self._blocks.append(np.empty((min(self._rows, left), *self.shape), self.dtype))

    def _by_block(self, index: Index) -> Iterator[tuple[Array, Index, Index]]:
        number, at = np.divmod(index, self._rows)
        for block in np.unique(number).tolist():
            chosen = np.flatnonzero(number == block)
            yield self._blocks[block], chosen, at[chosen]


class ReusedSlots:
    """Allocates slots, which are row numbers 0, 1, …; the slots freed last are the first to be reused.

    Memory use grows with the largest number of slots in use at the same time, not with `capacity`.

    Args:
        capacity: the maximum number of slots that may be in use at the same time.

    Attributes:
        touched: the number of slots that have ever been in use. These slots have the lowest numbers, and only they take
            memory.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._slots: Index = np.empty(0, np.int64)
        """The slots in use, followed by the free slots."""
        self._used = self.touched = 0

    def clear(self) -> None:
        """Free all slots, as if none had ever been in use."""
        self.restore(0, np.empty(0, np.int64))

    def __len__(self) -> int:
        """Return the number of slots in use."""
        return self._used

    def allocate(self, count: int) -> Index:
        """Mark `count` free slots as in use, and return them as a new array [count]."""
        total, missing = len(self._slots), self._used + count - len(self._slots)
        if missing > 0:
            grown = min(self._capacity, total + max(missing, total, _FIRST_SLOTS))
            self._slots = np.concatenate((self._slots, np.arange(total, grown)))
        slots = self._slots[self._used : self._used + count].copy()
        self._used += count
        if count:
            self.touched = max(self.touched, int(slots.max()) + 1)
        return slots

    def release(self, slots: Index) -> None:
        """Free slots that are in use."""
        self._used -= len(slots)
        self._slots[self._used : self._used + len(slots)] = slots

    def restore(self, touched: int, used: Index) -> None:
        """Mark the slots in `used` as in use; all of them are below `touched`."""
        free = np.ones(touched, np.bool_)
        free[used] = False
        self._slots = np.concatenate((used, np.flatnonzero(free)))
        self._used, self.touched = len(used), touched


class ObservationStore(ReusedSlots):
    """Stores encoded observations in slots, each only once even if several rows refer to it.

    Args:
        layout: the columns of an observation.
        capacity: the maximum number of slots that may be in use at the same time.
        block_bytes: see `LazyColumn`.
    """

    def __init__(self, layout: ObservationLayout, capacity: int, block_bytes: int = BLOCK_BYTES) -> None:
        super().__init__(capacity)
        self._layout = layout
        self.columns = [LazyColumn(column, capacity, block_bytes) for column in layout.columns()]

    def write(self, slots: Index, observations: EncodedObservations) -> None:
        """Write n observations into n slots."""
        arrays = self._layout.as_columns(observations)
        for column in self.columns:
            column.put(slots, arrays[column.name])

    def read(self, slots: Index) -> EncodedObservations:
        """Return the observations in n slots, as new arrays."""
        return self._layout.from_columns({column.name: column.take(slots) for column in self.columns})

    def vectors(self, slots: Index) -> Array:
        """Return only the vectors of the observations in n slots, as a new array."""
        return self.columns[0].take(slots)


# The file is written from, and read into, the memory's own arrays, so a large memory is never held twice. The file is
# either complete or absent: it is written under a temporary name, synced to disk, and renamed. Its layout is: `MAGIC`,
# length of the header (8 bytes), header (JSON), its CRC-32 (4 bytes), then each column's bytes and their CRC-32.
# Numbers are little-endian, like all platforms that torch runs on.
MAGIC = b"headrace replay\n"
FORMAT = 1

_CHUNK_BYTES = 2**24
_MOST_HEADER_BYTES = 2**26


class SavedMemory(Protocol):
    """A replay memory that can be written to a file."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """The YAML settings that determine the memory's shape; a file must have the same values."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return everything except the columns, as numbers and lists of numbers."""
        ...

    def columns(self) -> list[tuple[LazyColumn, int]]:
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

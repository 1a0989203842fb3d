"""The columns of a replay memory: as long as asked for from the start, but paid for only as they fill."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from headrace.queues.columns import Column
from headrace.queues.messages import Array
from headrace.stages.policy.observations import EncodedObservations, ObservationLayout
from headrace.stages.slots import FreeNumbers

Index = NDArray[np.int64]

BLOCK_BYTES = 2**30
_FIRST_SLOTS = 1024


class LazyColumn:
    """Rows of one shape and dtype, kept in blocks that are made when they are first written to.

    `np.empty` of a large array costs nothing on Linux until its pages are written, but a system may refuse to promise
    more memory than it has: 10^6 images of 84×84×4 are 28 GB. So no block is larger than `block_bytes`; a column that
    fits into one block, as vectors do, is one array, and gathering from it is one operation.

    Args:
        column: name, dtype and shape of a row.
        capacity: rows at most.
        block_bytes: bytes of a block at most (but at least one row).
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
        """Rows [n, *shape] that were written before; a new array."""
        if len(self._blocks) == 1:
            return self._blocks[0].take(index, axis=0)
        out = np.empty((len(index), *self.shape), self.dtype)
        for block, chosen, at in self._by_block(index):
            out[chosen] = block[at]
        return out

    def put(self, index: Index, rows: Array) -> None:
        """Write rows [n, *shape] at positions [n], each below the capacity."""
        if not len(index):
            return
        self._reach(int(index.max()) + 1)
        if len(self._blocks) == 1:
            self._blocks[0][index] = rows
            return
        for block, chosen, at in self._by_block(index):
            block[at] = rows[chosen]

    def parts(self, rows: int) -> Iterator[Array]:
        """The first `rows` rows as contiguous arrays, views; made where they were never written to."""
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


class ObservationStore:
    """Slots of encoded observations: each is kept once, whichever rows refer to it.

    A freed slot is the first to be used again: the memory touched grows to the most slots in use at a time, not to
    `capacity`.

    Args:
        layout: the columns of an observation.
        capacity: most slots in use at a time.
        block_bytes: see `LazyColumn`.
    """

    def __init__(self, layout: ObservationLayout, capacity: int, block_bytes: int = BLOCK_BYTES) -> None:
        self._layout = layout
        self._capacity = capacity
        self.columns = [LazyColumn(column, capacity, block_bytes) for column in layout.columns()]
        self.clear()

    def clear(self) -> None:
        """Free all slots."""
        self._free = FreeNumbers(np.empty(0, np.int64))
        self._total = 0
        self.touched = 0
        """Slots ever written to, which are the first ones: memory is paid for these alone."""

    def __len__(self) -> int:
        return self._total - len(self._free)

    def new(self, count: int) -> Index:
        """Free slots [count], to be written to."""
        missing = count - len(self._free)
        if missing > 0:
            grown = min(self._capacity, self._total + max(missing, self._total, _FIRST_SLOTS))
            self._free.extend(np.arange(self._total, grown))
            self._total = grown
        slots = self._free.allocate(count).copy()
        if count:
            self.touched = max(self.touched, int(slots.max()) + 1)
        return slots

    def free(self, slots: Index) -> None:
        """Free slots that are in use."""
        self._free.release(slots)

    def write(self, slots: Index, observations: EncodedObservations) -> None:
        """Write n observations into n slots."""
        arrays = self._layout.as_columns(observations)
        for column in self.columns:
            column.put(slots, arrays[column.name])

    def read(self, slots: Index) -> EncodedObservations:
        """The observations in n slots; new arrays."""
        return self._layout.from_columns({column.name: column.take(slots) for column in self.columns})

    def restore(self, touched: int, used: Index) -> None:
        """Mark the slots in `used`, of the first `touched` ones, as in use; their content is read elsewhere."""
        self.touched = self._total = touched
        free = np.ones(touched, np.bool_)
        free[used] = False
        numbers = np.concatenate((used, np.flatnonzero(free)))
        self._free = FreeNumbers(numbers)
        self._free.allocate(len(used))

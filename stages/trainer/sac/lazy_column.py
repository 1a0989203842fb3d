"""A column of a replay memory: as long as asked for from the start, but only paid for as it fills."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from queues.columns import Column
from queues.messages import Array

BLOCK_BYTES = 2**30


class LazyColumn:
    """Rows of one shape and dtype, kept in blocks that are made when they are first written to.

    `np.empty` of a large array costs nothing on Linux until its pages are written, but a system may refuse to promise
    more than it has: 10^6 images of 84×84×4 are 28 GB. So no block is larger than `block_bytes`; a column that fits
    into one, as vectors do, is one array, and gathering from it one operation.

    Args:
        column: name, dtype and shape of a row.
        capacity: rows at most.
        block_bytes: bytes of a block at most (but at least one row).
    """

    def __init__(self, column: Column, capacity: int, block_bytes: int = BLOCK_BYTES) -> None:
        self.name = column.name
        self.dtype = np.dtype(column.dtype)
        self.shape = column.shape
        row_bytes = max(1, self.dtype.itemsize * int(np.prod(column.shape, dtype=np.int64)))
        self._capacity = capacity
        self._rows = max(1, min(capacity, block_bytes // row_bytes))
        self._blocks: list[Array] = []

    def take(self, index: NDArray[np.int64]) -> Array:
        """Rows [n, *shape] that were written before; a new array."""
        if len(self._blocks) == 1:
            return self._blocks[0].take(index, axis=0)
        out = np.empty((len(index), *self.shape), self.dtype)
        for block, chosen, at in self._by_block(index):
            out[chosen] = block[at]
        return out

    def put(self, index: NDArray[np.int64], rows: Array) -> None:
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

    def _by_block(self, index: NDArray[np.int64]) -> Iterator[tuple[Array, NDArray[np.int64], NDArray[np.int64]]]:
        number, at = np.divmod(index, self._rows)
        for block in np.unique(number).tolist():
            chosen = np.flatnonzero(number == block)
            yield self._blocks[block], chosen, at[chosen]

"""Observations of a replay memory: each is kept once, whichever rows refer to it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stages.policy.observations import Encoded, ObservationLayout
from stages.slots import FreeNumbers
from stages.trainer.sac.lazy_column import BLOCK_BYTES, LazyColumn

Index = NDArray[np.int64]

_FIRST_SLOTS = 1024


class ObservationStore:
    """Slots of encoded observations, in the dtypes in which they came.

    A slot that is given back is the first to be used again: the memory touched grows to the most slots in use at a
    time, not to `capacity`.

    Args:
        layout: what an observation consists of.
        capacity: most slots in use at a time.
        block_bytes: see `LazyColumn`.
    """

    def __init__(self, layout: ObservationLayout, capacity: int, block_bytes: int = BLOCK_BYTES) -> None:
        self._layout = layout
        self._capacity = capacity
        self.columns = [LazyColumn(column, capacity, block_bytes) for column in layout.columns()]
        self.clear()

    def clear(self) -> None:
        """No slot is in use."""
        self._free = FreeNumbers(np.empty(0, np.int64))
        self._total = 0
        self.touched = 0
        """Slots that were ever written to, which are the first ones: their bytes are all that is paid for."""

    def __len__(self) -> int:
        return self._total - len(self._free)

    def new(self, count: int) -> Index:
        """Slots [count] that nobody uses, to be written to."""
        missing = count - len(self._free)
        if missing > 0:
            grown = min(self._capacity, self._total + max(missing, self._total, _FIRST_SLOTS))
            self._free.extend(np.arange(self._total, grown))
            self._total = grown
        slots = self._free.take(count).copy()
        if count:
            self.touched = max(self.touched, int(slots.max()) + 1)
        return slots

    def give_back(self, slots: Index) -> None:
        """These slots are used no more."""
        self._free.give(slots)

    def write(self, slots: Index, observations: Encoded) -> None:
        """Put n observations into n slots."""
        arrays = self._layout.as_columns(observations)
        for column in self.columns:
            column.put(slots, arrays[column.name])

    def read(self, slots: Index) -> Encoded:
        """The observations in n slots; new arrays."""
        return self._layout.from_columns({column.name: column.take(slots) for column in self.columns})

    def restore(self, touched: int, used: Index) -> None:
        """Take up that of the first `touched` slots those in `used` are in use; their content is read elsewhere."""
        self.touched = self._total = touched
        free = np.ones(touched, np.bool_)
        free[used] = False
        numbers = np.concatenate((used, np.flatnonzero(free)))
        self._free = FreeNumbers(numbers)
        self._free.take(len(used))

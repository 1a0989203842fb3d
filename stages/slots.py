"""Slots (small numbers for agents and pages): a stack of free numbers, and the table from agent ids to slots.

A slot is an agent's index in an assembler's per-agent arrays. Agent ids can be any size, and agents come and go; slots
are dense, and are reused. Slot 0 (`NOBODY`) stands for unknown agents.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Element = TypeVar("Element", bound=np.generic)

Where = slice | Numbers
"""Slots, as a slice if they are consecutive, because NumPy indexes faster with slices than with arrays."""

NOBODY = 0
# 0-d arrays, because NumPy takes longer to convert a Python value than to write it to a few slots.
_NOBODY, _USED, _UNUSED = np.array(NOBODY), np.array(True), np.array(False)


class FreeNumbers:
    """A stack of unused numbers; the first number passed to the constructor is on top."""

    def __init__(self, numbers: Numbers) -> None:
        self._stack = numbers
        self.size = len(numbers)
        """How many numbers there are, allocated or not."""
        self.in_use = 0
        """How many numbers are allocated."""

    def allocate(self, count: int) -> Numbers:
        """Remove and return `count` available numbers, as a view that is valid until the next `release`."""
        first, self.in_use = self.in_use, self.in_use + count
        return self._stack[first : self.in_use]

    def release(self, numbers: Numbers) -> None:
        """Return allocated numbers to the stack."""
        self.in_use -= len(numbers)
        self._stack[self.in_use : self.in_use + len(numbers)] = numbers

    def extend(self, numbers: Numbers) -> None:
        """Add new numbers at the bottom of the stack."""
        self._stack = np.concatenate((self._stack, numbers))
        self.size = len(self._stack)


class Slots:
    """Maps agent ids to slots, by binary search in a sorted copy that is rebuilt after each change.

    Attributes:
        ids: [total] each slot's agent id.
        total: number of slots, used or not, including `NOBODY`; this is the length of per-agent arrays.
    """

    def __init__(self, capacity: int) -> None:
        self._free = FreeNumbers(np.arange(1, 1 + capacity))
        self.total = 1 + capacity
        self.ids = np.zeros(1 + capacity, np.int64)
        self._used = np.zeros(1 + capacity, np.bool_)
        self._changed = True
        self._sorted_ids = self._sorted_slots = np.empty(0, np.int64)

    def __len__(self) -> int:
        return self._free.in_use

    def used(self) -> Numbers:
        """Return all slots in use, ascending."""
        return self._used.nonzero()[0]

    def find(self, agent_ids: Numbers) -> Numbers:
        """Return the agents' slots [n]; unknown agents get `NOBODY`."""
        return self.look_up(agent_ids)[0]

    def look_up(self, agent_ids: Numbers) -> tuple[Numbers, Numbers]:
        """Return the agents' slots [n] as `find` does, and the indices of unknown agents, ascending."""
        if self._changed:
            used = self.used()
            ids = self.ids[used]
            order = ids.argsort()
            self._sorted_ids, self._sorted_slots = ids[order], used[order]
            self._changed = False
        if not len(self._sorted_ids):
            return np.full(len(agent_ids), NOBODY), np.arange(len(agent_ids))
        at = self._sorted_ids.searchsorted(agent_ids)
        # `clip` handles ids above the highest known one: the id found in that case does not match.
        slots = self._sorted_slots.take(at, mode="clip")
        unknown = (self.ids[slots] != agent_ids).nonzero()[0]
        if len(unknown):
            slots[unknown] = _NOBODY
        return slots, unknown

    def add(self, agent_ids: Numbers) -> Numbers:
        """Allocate slots [n] for new agents and return them; `total` may grow."""
        if self._free.in_use + len(agent_ids) > self._free.size:
            self._grow(len(agent_ids))
        slots = self._free.allocate(len(agent_ids))
        self.ids[slots] = agent_ids
        self._used[slots] = _USED
        self._changed = True
        return slots

    def remove(self, slots: Numbers) -> None:
        """Remove the agents in these slots."""
        self._free.release(slots)
        self._used[slots] = _UNUSED
        self._changed = True
        if not self._free.in_use:
            # Restore the initial order: slots determine the order in which trajectories are cut, and after a checkpoint
            # a deterministic run must not depend on earlier agents.
            self._free = FreeNumbers(np.arange(1, self.total))

    def _grow(self, count: int) -> None:
        total = 2 * self.total + count
        self._free.extend(np.arange(self.total, total))
        self.ids = enlarged(self.ids, total)
        self._used = enlarged(self._used, total)
        self.total = total


def enlarged(array: NDArray[Element], length: int) -> NDArray[Element]:
    """Return a copy with zeros appended along the first axis."""
    larger = np.zeros((length, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger


def as_slice(slots: Numbers) -> Where:
    """Return the slots as a slice if they are consecutive, otherwise unchanged."""
    if not len(slots):
        return slots
    first, count = slots.item(0), len(slots)
    if slots.item(-1) - first == count - 1 and (slots[1:] > slots[:-1]).all():
        return slice(first, first + count)
    return slots

"""The replay of an actor–learner: past unrolls, some of which are drawn alongside fresh ones.

An unroll is T rows of consecutive trajectories; no trajectory crosses its borders. Each trajectory has a slot for its
data other than rows, and its last row refers to the slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.queues.columns import Column
from headrace.queues.messages import Array, Columns
from headrace.stages.slots import FreeNumbers
from headrace.stages.trainer.replay_store import LazyColumn

Index = NDArray[np.int64]
_ENDED = "piece"
"""Column of rows: the slot of the trajectory that ends with the row, -1 for all other rows."""


class UnrollReplay:
    """Keeps at most `capacity` unrolls, and draws some of them uniformly.

    Args:
        rows: columns of rows.
        trajectories: columns of trajectories, without their lengths.
        unroll_length: T.
        capacity: unrolls.
        sampling: `fifo` keeps the newest ones; `reservoir` a uniform sample of all that were ever added (Vitter 1985,
            "Random Sampling with a Reservoir", algorithm R).
    """

    def __init__(
        self,
        rows: Sequence[Column],
        trajectories: Sequence[Column],
        unroll_length: int,
        capacity: int,
        sampling: str,
    ) -> None:
        self._length = unroll_length
        self._capacity = capacity
        self._sampling = sampling
        most = capacity * unroll_length
        self._rows = {column.name: LazyColumn(column, most) for column in rows}
        self._ended = LazyColumn(Column(_ENDED, "int64"), most)
        self._pieces = {column.name: LazyColumn(column, most) for column in trajectories}
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._added = 0
        self._count = 0
        self._slots = FreeNumbers(np.empty(0, np.int64))
        self._touched = 0  # slots ever used, which are the first ones

    def __len__(self) -> int:
        """The number of unrolls kept."""
        return self._count

    @property
    def sizes(self) -> Mapping[str, int]:
        """The keys of the YAML that determine the memory's shape."""
        return {"replay_capacity": self._capacity, "unroll_length": self._length}

    def add(self, rows: Columns, trajectories: Columns, random: np.random.Generator) -> None:
        """Copy n unrolls into the memory.

        Args:
            rows: [n * T] columns.
            trajectories: columns, `lengths` among them.
            random: decides, for a reservoir, which unrolls are kept.
        """
        lengths = trajectories["lengths"].astype(np.int64)
        n = int(lengths.sum()) // self._length
        kept, places = self._places(n, random)
        if not len(kept):
            return
        self._release(places[places < self._count])
        self._count = max(self._count, int(places.max()) + 1)
        chosen = np.zeros(n, np.bool_)
        chosen[kept] = True
        last = np.cumsum(lengths) - 1
        pieces = np.flatnonzero(chosen[last // self._length])
        slots = self._allocate(len(pieces))
        ended = np.full(n * self._length, -1, np.int64)
        ended[last[pieces]] = slots
        source, target = self._rows_of(kept), self._rows_of(places)
        self._ended.put(target, ended[source])
        for name, column in self._rows.items():
            column.put(target, rows[name][source])
        for name, column in self._pieces.items():
            column.put(slots, trajectories[name][pieces])

    def draw(self, count: int, random: np.random.Generator) -> tuple[dict[str, Array], dict[str, Array]]:
        """Columns of the rows of `count` different unrolls, and of their trajectories; the memory must hold as many."""
        at = self._rows_of(random.choice(self._count, count, replace=False))
        ended = self._ended.take(at)
        last = np.flatnonzero(ended >= 0)
        rows = {name: column.take(at) for name, column in self._rows.items()}
        trajectories = {name: column.take(ended[last]) for name, column in self._pieces.items()}
        return rows, {**trajectories, "lengths": np.diff(last, prepend=-1)}

    def facts(self) -> dict[str, Any]:
        """All but the columns; see `headrace.stages.trainer.replay_store`."""
        return {**self.sizes, "added": self._added, "count": self._count, "touched": self._touched}

    def columns(self) -> list[tuple[LazyColumn, int]]:
        """All columns, and the number of their first rows in use."""
        rows = self._count * self._length
        return [
            (self._ended, rows),
            *((column, rows) for column in self._rows.values()),
            *((column, self._touched) for column in self._pieces.values()),
        ]

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Restore `facts()`; the caller then fills the columns, and calls `restored`."""
        self.clear()
        self._added, self._count, self._touched = (int(facts[name]) for name in ("added", "count", "touched"))

    def restored(self) -> None:
        """Find the slots in use, after all columns are filled."""
        ended = self._ended.take(np.arange(self._count * self._length)) if self._count else np.empty(0, np.int64)
        used = ended[ended >= 0]
        free = np.ones(self._touched, np.bool_)
        free[used] = False
        self._slots = FreeNumbers(np.concatenate((used, np.flatnonzero(free))))
        self._slots.allocate(len(used))

    def _places(self, n: int, random: np.random.Generator) -> tuple[Index, Index]:
        """Of n new unrolls, the ones that are kept, and their places [.], each place once."""
        numbers = self._added + np.arange(n)
        self._added += n
        if self._sampling == "fifo":
            places = numbers % self._capacity
        else:
            drawn = random.integers(0, numbers + 1)
            places = np.where(numbers < self._capacity, numbers, drawn)
        kept = np.flatnonzero(places < self._capacity)
        # If two get one place, the later one stays.
        _, first = np.unique(places[kept][::-1], return_index=True)
        kept = np.sort(kept[::-1][first])
        return kept, places[kept]

    def _rows_of(self, unrolls: Index) -> Index:
        rows: Index = (unrolls[:, None] * self._length + np.arange(self._length)).reshape(-1)
        return rows

    def _release(self, unrolls: Index) -> None:
        ended = self._ended.take(self._rows_of(unrolls)) if len(unrolls) else np.empty(0, np.int64)
        self._slots.release(ended[ended >= 0])

    def _allocate(self, count: int) -> Index:
        missing = count - len(self._slots)
        if missing > 0:
            total = self._slots.in_use + len(self._slots)
            self._slots.extend(np.arange(total, total + max(missing, total)))
        slots = self._slots.allocate(count).copy()
        self._touched = max(self._touched, int(slots.max()) + 1)
        return slots

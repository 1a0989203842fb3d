"""What a PPO trainer keeps between updates: rows and trajectories in preallocated columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from queues.columns import Column, action_columns
from queues.messages import Array
from queues.specs import BehaviorSpec
from stages.errors import StageError


class ColumnTable:
    """Columns of one length. Appending copies, and at least doubles the space where it does not suffice."""

    def __init__(self, columns: Sequence[Column], capacity: int) -> None:
        self._arrays = {c.name: np.empty((capacity, *c.shape), c.dtype) for c in columns}
        self._capacity = capacity
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, name: str) -> Array:
        """A view of a column's rows; changes with the next `append`."""
        return self._arrays[name][: self._length]

    def append(self, columns: Mapping[str, Array]) -> None:
        """Copy rows in; columns that the table does not have are left out."""
        n = len(columns[next(iter(self._arrays))])
        if self._length + n > self._capacity:
            self._grow(self._length + n)
        for name, array in self._arrays.items():
            array[self._length : self._length + n] = columns[name]
        self._length += n

    def clear(self) -> None:
        """Forget the rows; the space stays."""
        self._length = 0

    def state_dict(self) -> dict[str, Array]:
        """Copies of the columns."""
        return {name: self[name].copy() for name in self._arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace all rows by those of `state_dict()`.

        Raises:
            StageError: naming the column that is missing or of another shape.
        """
        for name, array in self._arrays.items():
            got = np.shape(state[name])[1:] if name in state else None
            if got != array.shape[1:]:
                raise StageError(f"buffer column {name!r}: expected rows of shape {array.shape[1:]}, got {got}")
        self.clear()
        self.append({name: np.asarray(state[name]) for name in self._arrays})

    def _grow(self, needed: int) -> None:
        self._capacity = max(needed, 2 * self._capacity)
        for name, array in self._arrays.items():
            grown = np.empty((self._capacity, *array.shape[1:]), array.dtype)
            grown[: self._length] = array[: self._length]
            self._arrays[name] = grown


class RolloutBuffer:
    """Rows and trajectories in the order in which they were added.

    Args:
        spec: observations and actions.
        inputs: width of an encoded observation.
        capacity: rows to have space for from the start (it grows where trajectories overshoot).
    """

    def __init__(self, spec: BehaviorSpec, inputs: int, capacity: int) -> None:
        encoded = Column("inputs", "float32", (inputs,))
        columns = [
            encoded,
            *action_columns(spec),
            Column("log_probs", "float32", (spec.actions.log_prob_size,)),
        ]
        if spec.actions.masked:
            columns.append(Column("action_masks", "bool", (spec.actions.mask_size,)))
        self.rows = ColumnTable([*columns, Column("rewards", "float32")], capacity)
        """[N] `inputs` (encoded, not normalised), actions, log_probs, action_masks, rewards."""
        self.trajectories = ColumnTable(
            [
                Column("lengths", "int64"),
                Column("terminated", "bool"),
                Column("next_inputs", "float32", (inputs,)),
            ],
            max(1, capacity // 16),
        )
        """[K] `lengths`, `terminated`, and `next_inputs`: the encoded observation after the last row."""

    def __len__(self) -> int:
        return len(self.rows)

    def clear(self) -> None:
        """Forget everything."""
        self.rows.clear()
        self.trajectories.clear()

    def state_dict(self) -> dict[str, Any]:
        """Copies of all columns."""
        return {"rows": self.rows.state_dict(), "trajectories": self.trajectories.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the rows of `state_dict()`.

        Raises:
            StageError: naming the column that differs.
        """
        self.rows.load_state_dict(state["rows"])
        self.trajectories.load_state_dict(state["trajectories"])

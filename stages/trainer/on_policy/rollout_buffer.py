"""What a PPO trainer keeps between updates: rows and trajectories in preallocated columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from config import MemorySettings
from queues.columns import GROUP_ROW_COLUMNS, GROUP_TRAJECTORY_COLUMNS, Column, action_columns, memory_column
from queues.messages import Array, TrajectoryBatch
from queues.specs import BehaviorSpec
from stages.errors import StageError
from stages.policy.observations import Encoded, ObservationLayout
from stages.trainer.on_policy.sequences import Cuts


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

    def columns(self) -> dict[str, Array]:
        """All columns by name, as such views."""
        return {name: self[name] for name in self._arrays}

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
        layout: how observations are kept.
        capacity: rows to have space for from the start (it grows where trajectories overshoot).
        memory: of the policy, None without.
        follows_agents: whether it is kept which agent's trajectories they are.
        grouped: whether it is kept who is in a group with whom: `queues.columns.GROUP_*`, and the batches' `sources`.
    """

    def __init__(
        self,
        spec: BehaviorSpec,
        layout: ObservationLayout,
        capacity: int,
        memory: MemorySettings | None = None,
        follows_agents: bool = False,
        grouped: bool = False,
    ) -> None:
        self._observed = [column.name for column in layout.columns()]
        self._finally_observed = [column.name for column in layout.columns("next_")]
        self._sequence_length = 0 if memory is None else memory.sequence_length
        actions = action_columns(spec)
        columns = [*layout.columns(), *actions, Column("log_probs", "float32", (spec.actions.log_prob_size,))]
        if spec.actions.masked:
            columns.append(Column("action_masks", "bool", (spec.actions.mask_size,)))
        columns.append(Column("rewards", "float32"))
        self.rows = ColumnTable([*columns, *GROUP_ROW_COLUMNS] if grouped else columns, capacity)
        """[N] observations (encoded, not normalised), actions, log_probs, action_masks, rewards."""
        columns = [Column("lengths", "int64"), Column("terminated", "bool"), *layout.columns("next_")]
        if follows_agents:
            columns += [Column("truncated", "bool"), Column("agent_ids", "int64"), Column("episode_ids", "int64")]
        if memory is not None:
            columns += action_columns(spec, "previous_")
        if grouped:
            columns += [*GROUP_TRAJECTORY_COLUMNS, Column("sources", "int64")]
        self.grouped = grouped
        self.trajectories = ColumnTable(columns, max(1, capacity // 16))
        """[K] lengths, terminated, the observation after the last row; whose they are; the action before the first."""
        self.sequences: ColumnTable | None = None
        """[Q] `memories` of the actor before each sequence; None without memory."""
        if memory is not None:
            self.sequences = ColumnTable([memory_column(memory.memory_size)], max(1, capacity // 16))

    def __len__(self) -> int:
        return len(self.rows)

    def append(self, batch: TrajectoryBatch, observations: Encoded, finals: Encoded) -> None:
        """Copy trajectories in.

        Args:
            batch: k of them.
            observations: its rows', encoded.
            finals: after the last row of each, encoded.
        """
        rows, trajectories = dict(batch.rows), dict(batch.trajectories)
        rows.update(zip(self._observed, (observations.vectors, *observations.others), strict=True))
        trajectories.update(zip(self._finally_observed, (finals.vectors, *finals.others), strict=True))
        if self.grouped:
            trajectories["sources"] = np.full(batch.num_trajectories, batch.source)
        self.rows.append(rows)
        self.trajectories.append(trajectories)
        if self.sequences is not None:
            # Of all that was remembered only this is needed: the rest the update computes anew.
            starts = Cuts.of(batch.lengths, self._sequence_length).starts
            self.sequences.append({"memories": batch.rows["memories"][starts]})

    def clear(self) -> None:
        """Forget everything."""
        for table in self._tables().values():
            table.clear()

    def state_dict(self) -> dict[str, Any]:
        """Copies of all columns."""
        return {name: table.state_dict() for name, table in self._tables().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the rows of `state_dict()`.

        Raises:
            StageError: naming the column that differs.
        """
        for name, table in self._tables().items():
            table.load_state_dict(state.get(name, {}))

    def _tables(self) -> dict[str, ColumnTable]:
        tables = {"rows": self.rows, "trajectories": self.trajectories}
        return tables if self.sequences is None else {**tables, "sequences": self.sequences}

"""The rollout buffer, which holds rows and trajectories for the next update in preallocated columns.

The rows of one update are a *portion*. A trajectory that crosses the end of a portion is split there, and its remainder
begins the next portion. Readers see only the first portion. A full portion is read as columns, or as observations and
actions in the form of network inputs. With memory, its trajectories are cut into sequences.

Axis letters: N rows of K consecutive trajectories, cut into Q sequences; P action features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config import MemorySettings
from headrace.queues.columns import GROUP_ROW_COLUMNS, GROUP_TRAJECTORY_COLUMNS, Column, action_columns, memory_column
from headrace.queues.messages import Array, Columns, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.design import MASK_PENALTY
from headrace.stages.policy.observations import EncodedObservations, ObservationLayout
from headrace.stages.policy.sampling import action_features, environment_actions
from headrace.stages.trainer.intake import drawn_actions
from headrace.stages.trainer.trajectories import AgentTable, Chains, cut_every, moments_within, rows_within, split


@dataclass(frozen=True, slots=True)
class SequenceCuts:
    """The positions of Q sequences among the rows, in row order.

    A sequence is within one trajectory and has at most L rows; a trajectory's last sequence may be shorter.
    """

    length: int
    """L, the maximum number of rows per sequence."""
    starts: NDArray[np.int64]
    """[Q] the first row of each sequence."""
    sizes: NDArray[np.int64]
    """[Q] the number of rows of each sequence, from 1 to L."""
    first: NDArray[np.int64]
    """[K] the index of the first sequence in each trajectory."""

    @classmethod
    def of(cls, lengths: NDArray[np.integer], length: int) -> SequenceCuts:
        """Cut consecutive trajectories of `lengths` [K] rows, each at least 1."""
        counts = -(-lengths.astype(np.int64) // length)
        first = np.cumsum(counts) - counts
        before = length * (np.arange(int(counts.sum())) - np.repeat(first, counts))
        rows_before = np.cumsum(lengths, dtype=np.int64) - lengths
        starts = np.repeat(rows_before, counts) + before
        sizes = np.minimum(length, np.repeat(lengths, counts) - before)
        return cls(length, starts, sizes, first)

    def __len__(self) -> int:
        return len(self.starts)

    def padded(self, which: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return q sequences' padded row indices [q, L], and the positions [R] of the entries that are not padding."""
        sizes, steps = self.sizes[which][:, None], np.arange(self.length)
        rows = self.starts[which][:, None] + np.minimum(steps, sizes - 1)
        return rows, np.flatnonzero((steps < sizes).reshape(-1))


class ColumnTable:
    """Columns of equal length, divided into portions. Readers see the first portion.

    Appending copies rows; if space runs out, capacity is at least doubled.
    """

    def __init__(self, columns: Sequence[Column], capacity: int) -> None:
        self.declared = tuple(columns)
        """The columns' names, dtypes and shapes."""
        self._arrays = {c.name: np.empty((capacity, *c.shape), c.dtype) for c in columns}
        self._capacity = capacity
        self._portions = [0]

    def __len__(self) -> int:
        return self._portions[0]

    def __getitem__(self, name: str) -> Array:
        """Return a view of a column's rows in the first portion, valid until the next `append`."""
        return self._arrays[name][: self._portions[0]]

    def columns(self) -> dict[str, Array]:
        """Return views of all columns' rows in the first portion, keyed by column name."""
        return {name: self[name] for name in self._arrays}

    def append(self, columns: Mapping[str, Array]) -> None:
        """Copy rows into the last portion; columns that the table does not have are ignored."""
        n, length = len(columns[next(iter(self._arrays))]), sum(self._portions)
        if length + n > self._capacity:
            self._grow(length, length + n)
        for name, array in self._arrays.items():
            array[length : length + n] = columns[name]
        self._portions[-1] += n

    @property
    def last_portion(self) -> int:
        """The number of rows in the last portion."""
        return self._portions[-1]

    def begin_portion(self) -> None:
        """Begin a new portion, which subsequent `append` calls fill."""
        self._portions.append(0)

    def clear(self) -> None:
        """Drop the first portion, so readers see the next one, if any. Memory is not freed."""
        first, *others = self._portions
        rest = sum(others)
        for array in self._arrays.values() if rest else ():
            array[:rest] = array[first : first + rest]
        self._portions = others or [0]

    def state_dict(self) -> dict[str, Array]:
        """Return copies of the columns, including all portions."""
        length = sum(self._portions)
        return {name: array[:length].copy() for name, array in self._arrays.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace all rows with those in `state_dict()`, as one portion.

        Raises:
            StageError: if a column is missing or has the wrong shape; the message names it.
        """
        for name, array in self._arrays.items():
            got = np.shape(state[name])[1:] if name in state else None
            if got != array.shape[1:]:
                raise StageError(f"buffer column {name!r}: expected rows of shape {array.shape[1:]}, got {got}")
        self._portions = [0]
        self.append({name: np.asarray(state[name]) for name in self._arrays})

    def _grow(self, length: int, needed: int) -> None:
        self._capacity = max(needed, 2 * self._capacity)
        for name, array in self._arrays.items():
            grown = np.empty((self._capacity, *array.shape[1:]), array.dtype)
            grown[:length] = array[:length]
            self._arrays[name] = grown


class RolloutBuffer:
    """Rows and trajectories in the order in which they were added, `size` rows for each update.

    Args:
        spec: observations and actions.
        layout: the layout of encoded observations.
        size: the number of rows per update; with groups, a few more if needed to keep teammates together.
        memory: the policy's memory settings; None without memory.
        follows_agents: whether to keep the agent and episode of each trajectory.
        grouped: whether to keep group data: the columns `headrace.queues.columns.GROUP_*`, and the batches' `sources`.
        extra: additional row columns to keep.
        unroll_length: trajectories are cut at each multiple of this number of rows; 0 for no cuts.
        squashed: whether the policy draws continuous actions as the tanh of a Gaussian.
    """

    def __init__(
        self,
        spec: BehaviorSpec,
        layout: ObservationLayout,
        size: int,
        memory: MemorySettings | None = None,
        follows_agents: bool = False,
        grouped: bool = False,
        extra: Sequence[Column] = (),
        unroll_length: int = 0,
        squashed: bool = False,
    ) -> None:
        self._spec = spec
        self._unroll_length = unroll_length
        self._size = size
        self._observed = [column.name for column in layout.columns()]
        self._finally_observed = [column.name for column in layout.columns("next_")]
        self._following = dict(zip(self._finally_observed, self._observed, strict=True))
        if grouped:
            self._following["next_ticks"] = "ticks"
        remembered = action_columns(spec) if memory is not None else ()
        self._preceding = {f"previous_{column.name}": column.name for column in remembered}
        self._sequence_length = 0 if memory is None else memory.sequence_length
        actions = action_columns(spec)
        columns = [*layout.columns(), *actions, Column("log_probs", "float32", (spec.actions.log_prob_size,))]
        if spec.actions.masked:
            columns.append(Column("action_masks", "bool", (spec.actions.mask_size,)))
        columns += [Column("rewards", "float32"), *extra]
        self.rows = ColumnTable([*columns, *GROUP_ROW_COLUMNS] if grouped else columns, size)
        """[N] encoded, unnormalised observations, actions, log_probs, action_masks, rewards."""
        self._used = {*self.rows.columns(), "memories"}
        columns = [Column("lengths", "int64"), Column("terminated", "bool"), *layout.columns("next_")]
        if follows_agents:
            columns += [Column("truncated", "bool"), Column("agent_ids", "int64"), Column("episode_ids", "int64")]
        if memory is not None:
            columns += action_columns(spec, "previous_")
        if grouped:
            columns += [*GROUP_TRAJECTORY_COLUMNS, Column("sources", "int64")]
        self.grouped, self.follows_agents, self.squashed = grouped, follows_agents, squashed
        self.trajectories = ColumnTable(columns, max(1, size // 16))
        """[K] length, terminated, final observation, agent, episode, action before the first row."""
        self.sequences: ColumnTable | None = None
        """[Q] column `memories`: the actor's memory before each sequence; None without memory."""
        if memory is not None:
            self.sequences = ColumnTable([memory_column(memory.memory_size)], max(1, size // 16))

    def __len__(self) -> int:
        return len(self.rows)

    def append(self, batch: TrajectoryBatch, observations: EncodedObservations, finals: EncodedObservations) -> None:
        """Copy trajectories into the buffer, split at the end of the portion.

        Args:
            batch: k trajectories.
            observations: the encoded observations of the batch's rows.
            finals: the trajectories' encoded final observations.
        """
        rows: Columns = {**batch.rows, **dict(zip(self._observed, arrays_of(observations), strict=True))}
        trajectories: Columns = {
            **batch.trajectories,
            **dict(zip(self._finally_observed, arrays_of(finals), strict=True)),
        }
        if self.grouped:
            trajectories = {**trajectories, "sources": np.full(batch.num_trajectories, batch.source)}
        if self._unroll_length:
            cut = self._unroll_length, self.rows.last_portion
            trajectories = cut_every(rows, trajectories, *cut, self._following, self._preceding)
        while len(rows["rewards"]) > (room := self._size - self.rows.last_portion):
            if self.grouped:
                kept = moments_within(trajectories, rows["ticks"], room)
            else:
                kept = rows_within(trajectories["lengths"], room)
            rows = {name: column for name, column in rows.items() if name in self._used}
            full, (rows, trajectories) = split(rows, trajectories, kept, self._following, self._preceding)
            self._put(*full)
            for table in self._tables().values():
                table.begin_portion()
        self._put(rows, trajectories)

    def extend(self, rows: Columns, trajectories: Columns, sequences: Columns) -> None:
        """Append another buffer's columns; columns that this buffer does not have are ignored."""
        self.rows.append(rows)
        self.trajectories.append(trajectories)
        if self.sequences is not None:
            self.sequences.append(sequences)

    def _put(self, rows: Columns, trajectories: Columns) -> None:
        self.rows.append(rows)
        self.trajectories.append(trajectories)
        if self.sequences is not None:
            # The update recomputes all other memories.
            starts = SequenceCuts.of(trajectories["lengths"], self._sequence_length).starts
            self.sequences.append({"memories": rows["memories"][starts]})

    @property
    def ended(self) -> NDArray[np.bool_]:
        """[K] true if the episode ended with the trajectory; available only if the buffer follows agents."""
        ended: NDArray[np.bool_] = self.trajectories["terminated"] | self.trajectories["truncated"]
        return ended

    def chains(self) -> Chains | None:
        """Return chains of trajectories by agent and episode; None if the buffer does not follow agents."""
        if not self.follows_agents:
            return None
        return Chains.of(self.trajectories["agent_ids"], self.trajectories["episode_ids"], self.ended)

    def kept(self, table: AgentTable) -> NDArray[Any]:
        """Return the values [K, width] that a table holds for the trajectories' agents; zeros for unknown agents."""
        return table.values_of(self.trajectories["agent_ids"], self.trajectories["episode_ids"])

    def keep(self, table: AgentTable, after: NDArray[Any], chains: Chains, update: int) -> None:
        """Store in a table the values [K, width] after each trajectory, for the agents' next trajectories."""
        last, trajectories = chains.latest, self.trajectories
        agents, episodes = trajectories["agent_ids"][last], trajectories["episode_ids"][last]
        table.keep(agents, episodes, after[last], self.ended[last], update)

    def cuts(self) -> SequenceCuts | None:
        """Return how the trajectories are cut into sequences; None without memory."""
        return SequenceCuts.of(self.trajectories["lengths"], self._sequence_length) if self._sequence_length else None

    def observations(self) -> EncodedObservations:
        """Return the rows' observations, not normalised, as views."""
        return _encoded(self.rows, self._observed)

    def final_observations(self) -> EncodedObservations:
        """Return the trajectories' final observations, not normalised, as views."""
        return _encoded(self.trajectories, self._finally_observed)

    def actions(self) -> tuple[NDArray[np.float32], Array]:
        """Return continuous actions [N, C] as the policy drew them, and choices [N, branches]; either may be empty."""
        return drawn_actions(self._spec.actions, self.rows.columns(), len(self))

    def penalties(self) -> Array:
        """Return penalties [N, choices] for logits: `MASK_PENALTY` if forbidden, else 0; width 0 without masks."""
        if not self._spec.actions.masked:
            return np.empty((len(self), 0))
        return np.where(self.rows["action_masks"], np.float32(0), MASK_PENALTY)

    def action_features(self) -> NDArray[np.float32]:
        """Return features [N, P] of each row's action."""
        return _features(self._spec, self.rows, self.squashed)

    def previous_action_features(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return features [N, P] of each row's previous action, and [K, P] of each trajectory's last action."""
        lengths = self.trajectories["lengths"]
        last = np.cumsum(lengths) - 1
        own = self.action_features()
        before = np.empty_like(own)
        before[1:] = own[:-1]
        before[last - lengths + 1] = _features(self._spec, self.trajectories, self.squashed, "previous_")
        return before, own[last]

    def clear(self) -> None:
        """Drop the rows of one update, so the next portion takes their place."""
        for table in self._tables().values():
            table.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return copies of all columns, including rows for later updates."""
        return {name: table.state_dict() for name, table in self._tables().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the rows from `state_dict()`.

        Raises:
            StageError: if a column differs; the message names it.
        """
        for name, table in self._tables().items():
            table.load_state_dict(state.get(name, {}))

    def _tables(self) -> dict[str, ColumnTable]:
        tables = {"rows": self.rows, "trajectories": self.trajectories}
        return tables if self.sequences is None else {**tables, "sequences": self.sequences}


def _encoded(table: ColumnTable, names: Sequence[str]) -> EncodedObservations:
    vectors, *others = (table[name] for name in names)
    return EncodedObservations(vectors, tuple(others))


def arrays_of(encoded: EncodedObservations) -> tuple[Array, ...]:
    """Return the arrays of encoded observations: first the vectors, then images and sets."""
    return (encoded.vectors, *encoded.others)


def _features(spec: BehaviorSpec, table: ColumnTable, squashed: bool, prefix: str = "") -> NDArray[np.float32]:
    drawn, choices = drawn_actions(spec.actions, table.columns(), len(table), prefix)
    return action_features(spec.actions, environment_actions(spec.actions, drawn, squashed), choices)

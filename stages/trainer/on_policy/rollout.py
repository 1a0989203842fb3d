"""The rows of an update, from trajectories to minibatches.

`RolloutBuffer` holds rows and trajectories for the next update in preallocated columns. The rows of one update are a
*portion*. A trajectory that crosses the end of a portion is split there, and its remainder begins the next portion.
Readers see only the first portion. A full portion is read as columns, or as observations and actions in the form of
network inputs. With memory, its trajectories are cut into sequences.

`Rollout` holds the rows of a full portion with their targets, and shuffles them in each epoch. Once per epoch, it
gathers them into one block. Minibatches are fixed-shape views into that block, and are made once per update. Only
images and sets, which may be large, are gathered per minibatch. `SequenceRollout` shuffles complete sequences, for a
policy with memory. A sequence shorter than L is padded with copies of its last row. Padding never affects a loss.

Axis letters: N rows of K consecutive trajectories, cut into Q sequences; P action features.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.config import MemorySettings
from headrace.queues.columns import GROUP_ROW_COLUMNS, GROUP_TRAJECTORY_COLUMNS, Column, action_columns, memory_column
from headrace.queues.messages import Array, Columns, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.design import MASK_PENALTY
from headrace.stages.policy.network.layers import Inputs, gathered, to_device
from headrace.stages.policy.observations import EncodedObservations, ObservationLayout
from headrace.stages.policy.sampling import action_features, environment_actions
from headrace.stages.trainer.intake import drawn_actions
from headrace.stages.trainer.protocol import SINGLE_TRAINER, Replicas
from headrace.stages.trainer.trajectories import AgentTable, Chains, cut_every, moments_within, rows_within, split

Floats = NDArray[np.float64]


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
        """Return the number of rows in the first portion."""
        return self._portions[0]

    def __getitem__(self, name: str) -> Array:
        """Return a view of a column's rows in the first portion, valid until the next `append`."""
        return self._arrays[name][: self._portions[0]]

    def columns(self) -> dict[str, Array]:
        """Return views of all columns' rows in the first portion, keyed by column name."""
        columns = dict[str, Array]()
        for name in self._arrays:
            columns[name] = self[name]
        return columns

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
        self._tables = {"rows": self.rows, "trajectories": self.trajectories}
        if self.sequences is not None:
            self._tables["sequences"] = self.sequences

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
            for table in self._tables.values():
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
        vectors, *others = map(self.rows.__getitem__, self._observed)
        return EncodedObservations(vectors, tuple(others))

    def final_observations(self) -> EncodedObservations:
        """Return the trajectories' final observations, not normalised, as views."""
        vectors, *others = map(self.trajectories.__getitem__, self._finally_observed)
        return EncodedObservations(vectors, tuple(others))

    def actions(self) -> tuple[NDArray[np.float32], Array]:
        """Return continuous actions [N, C] as the policy drew them, and choices [N, branches]; either may be empty."""
        rows, actions, n = self.rows, self._spec.actions, len(self)
        continuous = rows["continuous_actions"] if actions.continuous_size else np.empty((n, 0), np.float32)
        return continuous, rows["discrete_actions"] if actions.discrete_branches else np.empty((n, 0), np.int32)

    def penalties(self) -> Array:
        """Return penalties [N, choices] for logits: `MASK_PENALTY` if forbidden, else 0; width 0 without masks."""
        if not self._spec.actions.masked:
            return np.empty((len(self), 0))
        return np.where(self.rows["action_masks"], np.float32(0), MASK_PENALTY)

    def action_features(self) -> NDArray[np.float32]:
        """Return features [N, P] of each row's action."""
        drawn, choices = self.actions()
        return action_features(
            self._spec.actions, environment_actions(self._spec.actions, drawn, self.squashed), choices
        )

    def previous_action_features(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return features [N, P] of each row's previous action, and [K, P] of each trajectory's last action."""
        lengths = self.trajectories["lengths"]
        last = np.cumsum(lengths) - 1
        own = self.action_features()
        before = np.empty_like(own)
        before[1:] = own[:-1]
        actions, trajectories = self._spec.actions, self.trajectories
        drawn, choices = drawn_actions(actions, trajectories.columns(), len(lengths), "previous_")
        drawn = environment_actions(actions, drawn, self.squashed)
        before[last - lengths + 1] = action_features(actions, drawn, choices)
        return before, own[last]

    def clear(self) -> None:
        """Drop the rows of one update, so the next portion takes their place."""
        for table in self._tables.values():
            table.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return copies of all columns, including rows for later updates."""
        return {name: table.state_dict() for name, table in self._tables.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the rows from `state_dict()`.

        Raises:
            StageError: if a column differs; the message names it.
        """
        for name, table in self._tables.items():
            table.load_state_dict(state.get(name, {}))


def arrays_of(encoded: EncodedObservations) -> tuple[Array, ...]:
    """Return the arrays of encoded observations: first the vectors, then images and sets."""
    return (encoded.vectors, *encoded.others)


@dataclass(frozen=True)
class InputRows:
    """N rows of network inputs, from which minibatches are gathered."""

    vectors: Tensor
    """[N, V] normalised vectors, on the device."""
    others: tuple[Tensor, ...]
    """[N, *shape] each image and set, on the host."""
    previous_actions: Tensor | None = None
    """[N, P] features of the previous actions, on the device; None without memory."""

    @classmethod
    def of(
        cls,
        vectors: NDArray[np.float32],
        others: tuple[Array, ...],
        previous: NDArray[np.float32] | None,
        device: str,
        images: Collection[int] = (),
    ) -> InputRows:
        """Make rows from arrays, sharing the arrays' memory if the device allows it.

        Args:
            vectors: [N, V] normalised vectors.
            others: [N, *shape] each image and set.
            previous: [N, P] features of the previous actions; None without memory.
            device: the torch device that computes with the rows.
            images: the indices in `others` of channels-first images. On a CPU, they are converted here, once, to the
                channels-last memory format that convolutions need, instead of in each pass.
        """
        tensors = list(map(torch.from_numpy, others))
        if device == "cpu":
            for number in images:
                tensors[number] = tensors[number].contiguous(memory_format=torch.channels_last)
        return cls(
            to_device(torch.from_numpy(vectors), device),
            tuple(tensors),
            None if previous is None else to_device(torch.from_numpy(previous), device),
        )

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def device(self) -> torch.device:
        """The device that holds gathered rows."""
        return self.vectors.device

    def part(self, rows: slice) -> InputRows:
        """Return views of the rows in a slice."""
        previous = None if self.previous_actions is None else self.previous_actions[rows]
        return InputRows(self.vectors[rows], tuple(other[rows] for other in self.others), previous)

    def sequences(self, rows: NDArray[np.int64], memories: Tensor) -> Inputs:
        """Gather sequences of rows [q, L] that start with the memories [q, m]."""
        device, flat = self.vectors.device, torch.from_numpy(rows.reshape(-1))
        there = to_device(flat, device)
        previous = None if self.previous_actions is None else self.previous_actions.index_select(0, there)
        return Inputs(
            self.vectors.index_select(0, there),
            gather_others(self.others, flat, device),
            previous,
            memories,
            rows.shape[1],
        )


def gather_others(others: tuple[Tensor, ...], rows: Tensor, device: str | torch.device) -> tuple[Tensor, ...]:
    """Gather rows of images and sets, and copy them to the device with their dtype unchanged."""
    return tuple(gathered(other, rows, device) for other in others)


class MinibatchArrays(NamedTuple):
    """A minibatch without memory on the CPU. Its columns are array views with rows last."""

    choices: Sequence[NDArray[np.int64]]
    """For each branch, the choices [R]."""
    continuous: Array
    """[C, R] raw continuous actions."""
    penalties: Array
    """[choices, R] penalties added to logits; see `Minibatch`."""
    old_log_probs: Array
    """[P, R] log-probabilities; see `Minibatch`."""
    advantages: Array
    """[1, R] or [P, R] advantages; see `Minibatch`."""
    returns: Array
    """[S, R] value targets."""
    anchor: Array | None = None
    """[D, R] the anchor's action distributions; None without an anchor."""


class PackedColumns(NamedTuple):
    """A minibatch's columns, concatenated into one matrix per dtype."""

    floats: Tensor
    """[R, …] normalised vectors, `Minibatch`'s columns from `continuous` to `returns`, and the anchor's columns."""
    choices: Tensor
    """[R, branches] int64 choices."""
    widths: tuple[int, ...]
    """Width of each column in `floats`."""


@dataclass(frozen=True)
class Minibatch:
    """R rows to learn from, with B inputs: B = R, or more if sequences are padded.

    Axis letters: C continuous actions, P columns of log-probabilities (one for the joint action, or one per action
    dimension and branch), S reward signals, L rows per sequence, m memory size.
    """

    choices: tuple[Tensor, ...]
    """For each branch, the choices [R, 1] int64."""
    inputs: Inputs
    """[B, …] encoded, normalised observations; with memory, also previous actions and the actor's memories."""
    continuous: Tensor
    """[R, C] raw continuous actions."""
    penalties: Tensor
    """[R, choices] penalties added to logits: `MASK_PENALTY` for forbidden choices, else 0; width 0 without masks."""
    old_log_probs: Tensor
    """[R, P] log-probabilities under the policy before the update; if not decoupled, under the policy that acted."""
    advantages: Tensor
    """[R, 1] normalised advantages; if decoupled, [R, P], multiplied by the `importance_weights`."""
    returns: Tensor
    """[R, S] value targets."""
    rows: Tensor
    """[R] indices of the rows in the rollout, on the host."""
    real: Tensor | None = None
    """[R] indices of the real rows among the B inputs; None without padding."""
    critic_memories: Tensor | None = None
    """[B / L, m] the critic's memory before each sequence; None without memory, or if it is the actor's."""
    padded: Tensor | None = None
    """[B] the rollout row of each input, on the host; None if equal to `rows`."""
    share: float = 1.0
    """Weight of means over these rows; below 1 if other replicas have different rows of the same minibatch."""
    together: Tensor | None = None
    """[…] indices of all replicas' rows, on the host; None if equal to `rows`."""
    block: PackedColumns | None = None
    """The block that the columns are views of; None for sequences."""
    anchor: Tensor | None = None
    """[R, D] the anchor's action distributions, from `anchor.described`; None without an anchor."""
    teams: Any = None
    """[B, …] the inputs' teams, for a critic that evaluates groups (`poca.Teams`); None for other critics."""
    old_baselines: Tensor | None = None
    """[R, S] that critic's baselines before the update; None for other critics."""

    @classmethod
    def of_block(cls, block: PackedColumns, rows: Tensor, others: tuple[Tensor, ...] = ()) -> Minibatch:
        """Make a minibatch without memory from a block, the indices of its rows, and its images and sets."""
        parts = torch.split(block.floats, list(block.widths), dim=1)
        vectors, continuous, penalties, log_probs, advantages, returns, *anchor = parts
        columns, inputs = (continuous, penalties, log_probs, advantages, returns), Inputs(vectors, others)
        choices = block.choices.unsqueeze(2).unbind(1)
        return cls(choices, inputs, *columns, rows, block=block, anchor=next(iter(anchor), None))

    @classmethod
    def of_actions(cls, continuous: Array, penalties: Array, choices: Array, device: torch.device) -> Minibatch:
        """Make a minibatch of continuous actions [R, C], choices [R, branches] and penalties, for log-probabilities."""
        drawn = to_device(torch.from_numpy(continuous.astype(np.float32)), device)
        added = to_device(torch.from_numpy(penalties.astype(np.float32)), device)
        chosen = to_device(torch.from_numpy(choices.astype(np.int64)), device)
        none = torch.empty(len(choices), 0, device=device)
        rows = torch.empty(0, dtype=torch.int64)
        return cls(chosen.unsqueeze(2).unbind(1), Inputs(none), drawn, added, none, none, none, rows)

    @cached_property
    def arrays(self) -> MinibatchArrays:
        """The columns as arrays. They are made only once, because each epoch reuses the minibatches."""
        columns = self.continuous, self.penalties, self.old_log_probs, self.advantages, self.returns
        made = MinibatchArrays([chosen.numpy()[:, 0] for chosen in self.choices], *(one.numpy().T for one in columns))
        return made if self.anchor is None else made._replace(anchor=self.anchor.numpy().T)


class MinibatchSource(Protocol):
    """A rollout that is cut into different minibatches in each epoch."""

    def epochs(
        self, count: int, batch_size: int, random: np.random.Generator, replicas: Replicas = SINGLE_TRAINER
    ) -> Iterator[Iterable[Minibatch]]:
        """Yield, for each epoch, minibatches (or this replica's part of each) in a new random order."""
        ...


class Rollout:
    """N rows to learn from, on the device.

    Args:
        inputs: the inputs; images and sets stay on the host until a minibatch needs them.
        targets: float columns [N, width]: `Minibatch`'s columns from `continuous` to `returns`, followed by `anchor` if
            there is one.
        choices: [N, branches] discrete actions.
        advantages: [N] advantages to normalise over each minibatch and multiply into the advantages column; None if
            that column is already final.
    """

    def __init__(
        self, inputs: InputRows, targets: list[Array], choices: Array, advantages: Array | None = None
    ) -> None:
        packed, widths = _packed(targets, inputs.vectors.device)
        self._widths = inputs.vectors.shape[1], *widths
        self._floats = torch.cat([inputs.vectors, packed], dim=1)
        self._choices = to_device(torch.from_numpy(choices.astype(np.int64)), inputs.vectors.device)
        self._others = inputs.others
        self._advantages: Tensor | None = None
        if advantages is not None:
            self._advantages = to_device(torch.from_numpy(advantages.astype(np.float32)), inputs.vectors.device)

    def __len__(self) -> int:
        """Return the number of rows, N."""
        return len(self._floats)

    def epochs(
        self, count: int, batch_size: int, random: np.random.Generator, replicas: Replicas = SINGLE_TRAINER
    ) -> Iterator[Iterable[Minibatch]]:
        """Yield floor(N / batch_size) minibatches per epoch, in a new random order; the remaining rows are dropped."""
        n, device, part = len(self._floats), self._floats.device, replicas.part(batch_size)
        number, size = n // batch_size, part.rows.stop - part.rows.start
        floats = torch.empty((number * size, self._floats.shape[1]), device=device)
        choices = torch.empty((number * size, self._choices.shape[1]), dtype=torch.int64, device=device)
        together = torch.empty((number, batch_size), dtype=torch.int64)
        rows = torch.empty(number * size, dtype=torch.int64)
        minibatches = list(self._views(floats, choices, rows, size))
        if replicas.size > 1:
            share = size * part.weight / batch_size
            minibatches = [
                replace(one, share=share, together=whole) for one, whole in zip(minibatches, together, strict=True)
            ]
        for _ in range(count):
            shuffled = random.permutation(n)[: number * batch_size]
            together.copy_(torch.from_numpy(shuffled).view(number, batch_size))
            rows.view(number, size).copy_(together[:, part.rows])
            order = to_device(rows, device)
            torch.index_select(self._floats, 0, order, out=floats)
            torch.index_select(self._choices, 0, order, out=choices)
            if self._advantages is not None:
                of_all = self._advantages[to_device(together, order.device)]
                column = torch.split(floats, list(self._widths), dim=1)[4]
                column.mul_(standardised(of_all)[:, part.rows].reshape(-1, 1))
            yield map(self._with_others, minibatches) if self._others else minibatches

    def in_order(self, batch_size: int) -> Iterator[Minibatch]:
        """Yield all N rows in order, in minibatches of at most `batch_size` rows."""
        minibatches = self._views(self._floats, self._choices, torch.arange(len(self._floats)), batch_size)
        return map(self._with_others, minibatches) if self._others else minibatches

    def _views(self, floats: Tensor, choices: Tensor, rows: Tensor, batch_size: int) -> Iterator[Minibatch]:
        """Yield views of at most `batch_size` rows each, without images and sets."""
        for part, chosen, numbers in zip(
            torch.split(floats, batch_size),
            torch.split(choices, batch_size),
            torch.split(rows, batch_size),
            strict=True,
        ):
            yield Minibatch.of_block(PackedColumns(part, chosen, self._widths), numbers)

    def _with_others(self, minibatch: Minibatch) -> Minibatch:
        others = gather_others(self._others, minibatch.rows, self._floats.device)
        return replace(minibatch, inputs=minibatch.inputs._replace(others=others))


class SequenceRollout:
    """N rows in Q sequences to learn from, on the device.

    Args:
        inputs: the N rows, with previous actions.
        targets: float columns [N, width]: `Minibatch`'s columns from `continuous` to `returns`, followed by `anchor` if
            there is one.
        choices: [N, branches] discrete actions.
        cuts: the positions of the Q sequences.
        memories: [Q, m] the actor's memory before each sequence.
        critic_memories: [Q, m] the critic's memory before each sequence; None if actor and critic share their memory.
    """

    def __init__(
        self,
        inputs: InputRows,
        targets: list[Array],
        choices: Array,
        cuts: SequenceCuts,
        memories: Tensor,
        critic_memories: Tensor | None,
    ) -> None:
        self._inputs = inputs
        self._device = inputs.device
        self._targets, self._widths = _packed(targets, self._device)
        self._choices = to_device(torch.from_numpy(choices.astype(np.int64)), self._device)
        self._cuts = cuts
        self._memories = memories
        self._critic_memories = critic_memories

    def __len__(self) -> int:
        """Return the number of rows, N."""
        return len(self._inputs)

    def epochs(
        self, count: int, batch_size: int, random: np.random.Generator, replicas: Replicas = SINGLE_TRAINER
    ) -> Iterator[Iterator[Minibatch]]:
        """Yield each epoch's minibatches of sequences, in a new random order; the remaining sequences are dropped.

        Each minibatch has enough sequences for `batch_size` rows including padding, and at least one sequence.
        """
        each = max(1, batch_size // self._cuts.length)
        for _ in range(count):
            order = random.permutation(len(self._cuts))
            yield (self._part(order[at : at + each], replicas) for at in range(0, len(order) - each + 1, each))

    def in_order(self, batch_size: int) -> Iterator[Minibatch]:
        """Yield all N rows in order, in minibatches of complete sequences."""
        numbers, each = np.arange(len(self._cuts)), max(1, batch_size // self._cuts.length)
        return (self._minibatch(numbers[at : at + each]) for at in range(0, len(numbers), each))

    def _part(self, which: NDArray[np.int64], replicas: Replicas) -> Minibatch:
        if replicas.size == 1:
            return self._minibatch(which)
        part = replicas.part(len(which))
        padded, real = self._cuts.padded(which)
        together = torch.from_numpy(padded.reshape(-1)[real])
        own = self._minibatch(which[part.rows])
        return replace(own, share=len(own.rows) * part.weight / len(together), together=together)

    def _minibatch(self, which: NDArray[np.int64]) -> Minibatch:
        padded, real = self._cuts.padded(which)
        rows, chosen = torch.from_numpy(padded.reshape(-1)[real]), to_device(torch.from_numpy(which), self._device)
        there = to_device(rows, self._device)
        targets = torch.split(self._targets.index_select(0, there), self._widths, dim=1)
        continuous, penalties, old_log_probs, advantages, returns, *anchor = targets
        return Minibatch(
            self._choices.index_select(0, there).unsqueeze(2).unbind(1),
            self._inputs.sequences(padded, self._memories.index_select(0, chosen)),
            continuous,
            penalties,
            old_log_probs,
            advantages,
            returns,
            rows,
            to_device(torch.from_numpy(real), self._device),
            None if self._critic_memories is None else self._critic_memories.index_select(0, chosen),
            torch.from_numpy(padded.reshape(-1)),
            anchor=next(iter(anchor), None),
        )


def standardised(values: Tensor) -> Tensor:
    """Standardise each row of values [k, R] by its mean and sample standard deviation, as usual in PPO."""
    if values.shape[1] < 2:
        return values
    deviation, mean = torch.std_mean(values, dim=1, keepdim=True)
    return (values - mean) / (deviation + 1e-8)


def _packed(columns: list[Array], device: torch.device) -> tuple[Tensor, list[int]]:
    """Concatenate columns into one float matrix on the device; return the matrix and the width of each column."""
    floats, widths = list[Array](), list[int]()
    for column in columns:
        floats.append(column.astype(np.float32, copy=False))
        widths.append(column.shape[1])
    return to_device(torch.from_numpy(np.concatenate(floats, axis=1)), device), widths


# Recursions over trajectories that are packed end to end.


def next_values(
    values_t: Floats, final_values: Floats, lengths: NDArray[np.integer], valueless: NDArray[np.bool_]
) -> Floats:
    """Return the value [N, S] after each row: the next row's value, the final value, or 0 if that is `valueless`."""
    values_tp1 = np.empty_like(values_t)
    values_tp1[:-1] = values_t[1:]
    values_tp1[np.cumsum(lengths) - 1] = np.where(valueless, 0.0, final_values)
    return values_tp1


def accumulated(terms: Floats, decay: Floats, lengths: NDArray[np.integer]) -> Floats:
    """Return x_t = term_t + decay_t x_{t+1} within each trajectory, from terms [N, S] and decays [N, S] or [S]."""
    # One pass per distance from the trajectories' ends, over all trajectories that are long enough: the longest come
    # first, so they are a prefix.
    order = np.argsort(-lengths, kind="stable")
    last = (np.cumsum(lengths) - 1)[order]
    counts = np.bincount(lengths)[::-1].cumsum()[::-1][1:]  # [longest] how many trajectories have at least 1, 2, … rows
    decays, sums = np.broadcast_to(decay, terms.shape), terms.copy()
    for distance, count in enumerate(counts[1:].tolist(), 1):
        rows = last[:count] - distance
        sums[rows] += decays[rows] * sums[rows + 1]
    return sums

"""The replay memory: the newest `capacity` steps in preallocated columns, sampled uniformly, and minibatches of them.

Observations are stored separately (`ObservationStore`), and rows refer to them. A step's next observation is also the
observation of the next step, so it is stored only once. This also holds across pieces of a trajectory: a piece's first
observation is the final observation of the previous piece. A checkpoint holds the memory as a separate file.

In order: samples and the memory, its columns, SAC's minibatches, measurements of gradient steps, and the file.

Axis letters: N rows and K pieces in a batch, B rows in a sample, S sequences of L rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol
from zipfile import ZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.queues.archive import open_archive
from headrace.queues.columns import Column, action_columns, memory_column
from headrace.queues.files import write_atomic
from headrace.queues.messages import Array, TrajectoryBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.design import MASK_PENALTY
from headrace.stages.policy.network.layers import Inputs, to_device
from headrace.stages.policy.observations import EncodedObservations, ObservationLayout
from headrace.stages.policy.sampling import action_features, environment_actions
from headrace.stages.trainer.intake import ObservationPreprocessor, Transitions, drawn_actions
from headrace.stages.trainer.protocol import Replicas, ReplicaSlice
from headrace.stages.trainer.trajectories import SequenceCuts

Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ReplayedSequences:
    """Additional data about a sample of S sequences, whose S × L rows are concatenated."""

    length: int
    """L, the number of rows per sequence."""
    mask: NDArray[np.bool_]
    """[S * L] true for real rows; the others are padding: copies of a sequence's last row."""
    memories: NDArray[np.float32]
    """[S, m] the actor's memory before each sequence's first row."""
    previous: Mapping[str, Array]
    """[S, ...] the action before the first row, keyed by column name (`previous_continuous_actions`,
    `previous_discrete_actions`)."""

    def part(self, rows: slice) -> ReplayedSequences:
        """Return the sequences that the rows in a slice form."""
        some = slice(rows.start // self.length, rows.stop // self.length)
        previous = {name: column[some] for name, column in self.previous.items()}
        return ReplayedSequences(self.length, self.mask[rows], self.memories[some], previous)


@dataclass(frozen=True, slots=True)
class ReplayedRows:
    """B rows of the memory, as copies."""

    observations: EncodedObservations
    """[B, ...] the observations, not normalised."""
    next_observations: EncodedObservations
    """[B, ...] the next observations; at a terminated episode's end, as returned by `ObservationPreprocessor`."""
    columns: Mapping[str, Array]
    """[B, ...] the columns `rewards`, `terminated`, actions and `action_masks`."""
    sequences: ReplayedSequences | None = None

    def part(self, rows: slice) -> ReplayedRows:
        """Return views of the rows in a slice; if there are sequences, the slice must contain complete sequences."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        sequences = None if self.sequences is None else self.sequences.part(rows)
        return ReplayedRows(self.observations.rows(rows), self.next_observations.rows(rows), columns, sequences)


class ReplayMemory:
    """A ring of rows, and the observations that they refer to.

    Args:
        spec: observations and actions.
        layout: the layout of encoded observations.
        capacity: the number of rows kept; each new row replaces the oldest one.
        memory_size: m, for a policy with memory.
        sequence_length: L, for a policy with memory: sequences start at the start of each piece, and at each multiple
            of L within it.
    """

    def __init__(
        self,
        spec: BehaviorSpec,
        layout: ObservationLayout,
        capacity: int,
        memory_size: int = 0,
        sequence_length: int = 0,
    ) -> None:
        self.capacity = capacity
        self.sequence_length = sequence_length
        self.sizes = {"buffer_size": capacity, "sequence_length": sequence_length}
        """The YAML settings that determine the memory's shape."""
        self.layout = layout
        sampled = [Column("terminated", "bool"), *replayed_columns(spec)]
        references = [Column("slot", "int64"), Column("next_slot", "int64"), Column("continued", "bool")]
        self._sampled = [column.name for column in sampled]
        self._rows = {c.name: LazyColumn(c, capacity) for c in (*sampled, *references)}
        # In the worst case, each row has a separate observation and next observation.
        self.observations = ObservationStore(layout, 2 * capacity)
        starts = [Column("row", "int64"), Column("length", "int64"), memory_column(memory_size)]
        starts += action_columns(spec, "previous_")
        self._starts = {c.name: LazyColumn(c, capacity) for c in starts} if sequence_length else {}
        self._previous = [column.name for column in action_columns(spec, "previous_")]
        self.clear()

    def clear(self) -> None:
        """Remove all rows."""
        self._count = 0  # number of rows ever added: row i is stored at i % capacity
        self._start_count = 0  # number of sequences ever begun, stored in the same way
        self._first_start = 0  # number of the first sequence whose first row is still stored
        self._open: dict[int, tuple[int, int]] = {}  # agent → episode, and the newest row of its unfinished trajectory
        self.observations.restore(0, np.empty(0, np.int64))

    def __len__(self) -> int:
        return min(self._count, self.capacity)

    @property
    def num_sequences(self) -> int:
        """The number of sequences whose first row is still stored."""
        return self._start_count - self._first_start

    def add(self, batch: TrajectoryBatch, rows: EncodedObservations, finals: EncodedObservations) -> None:
        """Add copies of trajectories to the memory.

        Args:
            batch: K pieces with N rows in total.
            rows: [N, ...] the observations of the pieces' rows.
            finals: [K, ...] the pieces' final observations.

        Raises:
            StageError: if the memory has a smaller capacity than N.
        """
        if batch.num_rows > self.capacity:
            raise StageError(
                f"a batch of {batch.num_rows} steps does not fit into a replay buffer of {self.capacity} steps: raise "
                "hyperparameters.buffer_size"
            )
        first, ends = self._count, np.cumsum(batch.lengths, dtype=np.int64)
        self._evict(first + batch.num_rows - self.capacity)
        slots, final_slots, continued = self._store_observations(batch, rows, finals, self._continue(batch))
        if self.sequence_length:
            self._add_starts(batch)
        next_slots, terminated = np.append(slots[1:], 0), np.zeros(batch.num_rows, np.bool_)
        next_slots[ends - 1], terminated[ends - 1] = final_slots, batch.terminated
        joined = np.ones(batch.num_rows, np.bool_)
        joined[ends - 1] = False
        references = {"slot": slots, "next_slot": next_slots, "continued": joined}
        columns = {**batch.rows, "terminated": terminated, **references}
        at = np.arange(first, first + batch.num_rows) % self.capacity
        for name in (*self._sampled, *references):
            self._rows[name].put(at, columns[name])
        self._rows["continued"].put(continued % self.capacity, np.ones(len(continued), np.bool_))
        self._count += batch.num_rows

    def enough(self, count: int) -> bool:
        """Return True if the memory holds `count` rows; a memory with sequences needs only one row."""
        return len(self) >= (1 if self.sequence_length else count)

    def sample(self, count: int, random: np.random.Generator) -> ReplayedRows:
        """Draw rows uniformly with replacement; the memory must hold at least one row."""
        return self._gather(random.integers(len(self), size=count))

    def sample_sequences(self, count: int, random: np.random.Generator) -> ReplayedRows:
        """Draw sequences uniformly with replacement, about `count` rows in total; the memory must not be empty.

        A sequence is a run of steps from one episode, and ends no later than its piece. All sequences are padded to the
        longest one drawn. Padding does not count as rows, so if episodes are much shorter than L, more sequences are
        drawn.
        """
        number = max(1, round(count * self.num_sequences / len(self)))
        chosen = random.integers(self._first_start, self._start_count, size=number) % self.capacity
        lengths = self._starts["length"].take(chosen)[:, None]
        longest = int(lengths.max())
        offsets = np.arange(longest)
        rows = self._starts["row"].take(chosen)[:, None] + np.minimum(offsets, lengths - 1)
        sequences = ReplayedSequences(
            longest,
            (offsets < lengths).reshape(-1),
            self._starts["memories"].take(chosen),
            {name: self._starts[name].take(chosen) for name in self._previous},
        )
        return self._gather(rows.reshape(-1) % self.capacity, sequences)

    def taken(self, ages: Index) -> tuple[TrajectoryBatch, EncodedObservations, EncodedObservations]:
        """Return rows of a memory without sequences, in the form that `add` takes; consecutive rows form one piece.

        Args:
            ages: [N] the rows' numbers, ascending; 0 is the oldest row.
        """
        at = (max(0, self._count - self.capacity) + ages) % self.capacity
        slots, next_slots = self._rows["slot"].take(at), self._rows["next_slot"].take(at)
        lasts = np.flatnonzero(np.append(next_slots[:-1] != slots[1:], True))
        rows = {name: self._rows[name].take(at) for name in self._sampled}
        terminated = rows.pop("terminated")[lasts]
        pieces: dict[str, Array] = {
            "lengths": np.diff(lasts, prepend=-1).astype(np.int32),
            "agent_ids": np.zeros(len(lasts), np.int64),
            "episode_ids": np.arange(len(lasts)),
            "terminated": terminated,
            "truncated": ~terminated,  # no piece will continue these pieces
            "credits": np.zeros(len(lasts), np.int32),
        }
        before, after = self.observations.read(slots), self.observations.read(next_slots[lasts])
        return TrajectoryBatch("", 0, rows, pieces), before, after

    def facts(self) -> dict[str, Any]:
        """Return plain values for `restore`, in addition to the columns."""
        return {
            **self.sizes,
            "count": self._count,
            "start_count": self._start_count,
            "first_start": self._first_start,
            "touched": self.observations.touched,
            "open": [[agent, *newest] for agent, newest in self._open.items()],
        }

    def columns(self) -> list[tuple[LazyColumn, int]]:
        """Return all columns, each with its number of leading rows in use, without copying them."""
        begun = min(self._start_count, self.capacity)
        return [
            *((column, len(self)) for column in self._rows.values()),
            *((column, begun) for column in self._starts.values()),
            *((column, self.observations.touched) for column in self.observations.columns),
        ]

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Restore `facts()`; the caller must then fill the columns and call `restored`."""
        self.clear()
        self._count = int(facts["count"])
        self._start_count = int(facts["start_count"])
        self._first_start = int(facts["first_start"])
        self._open = {int(agent): (int(episode), int(row)) for agent, episode, row in facts["open"]}
        self.observations.touched = int(facts["touched"])

    def restored(self) -> None:
        """Find the observations in use, once all columns are filled."""
        at = np.arange(len(self))
        used = np.union1d(self._rows["slot"].take(at), self._rows["next_slot"].take(at)) if len(self) else at
        self.observations.restore(self.observations.touched, used)

    def _gather(self, at: Index, sequences: ReplayedSequences | None = None) -> ReplayedRows:
        columns = dict[str, Array]()
        for name in self._sampled:
            columns[name] = self._rows[name].take(at)
        before, after = self._rows["slot"].take(at), self._rows["next_slot"].take(at)
        return ReplayedRows(self.observations.read(before), self.observations.read(after), columns, sequences)

    def _evict(self, oldest: int) -> None:
        """Remove the rows before `oldest`, and the observations that only these rows refer to.

        A row's observation may also be the previous row's next observation, but that row is older. A row's next
        observation is also the next row's observation if the trajectory continues.
        """
        present = max(0, self._count - self.capacity)
        at = np.arange(present, oldest) % self.capacity
        if not len(at):
            return
        last = ~self._rows["continued"].take(at)
        slots = self._rows["slot"].take(at)
        self.observations.release(np.concatenate((slots, self._rows["next_slot"].take(at)[last])))
        if self.sequence_length:
            begun = np.arange(self._first_start, min(self._start_count, self._first_start + len(at)))
            self._first_start += int((self._starts["row"].take(begun % self.capacity) < oldest).sum())
        while self._open:  # in the order of their newest rows
            agent, (_, row) = next(iter(self._open.items()))
            if row >= oldest:
                break
            del self._open[agent]

    def _continue(self, batch: TrajectoryBatch) -> Index:
        """Return the row [K] that each piece continues, by agent and episode; -1 if none. Record unfinished pieces."""
        before = np.full(batch.num_trajectories, -1)
        lasts = self._count - 1 + np.cumsum(batch.lengths, dtype=np.int64)
        columns = (batch.trajectories["agent_ids"], batch.trajectories["episode_ids"], lasts)
        over = (batch.terminated | batch.truncated).tolist()
        for k, (agent, episode, last) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            unfinished = self._open.pop(agent, None)
            if unfinished is not None and unfinished[0] == episode:
                before[k] = unfinished[1]
            if not over[k]:
                self._open[agent] = (episode, last)
        return before

    def _store_observations(
        self, batch: TrajectoryBatch, rows: EncodedObservations, finals: EncodedObservations, before: Index
    ) -> tuple[Index, Index, Index]:
        """Store observations not stored yet, given the row [K] that each piece continues.

        A piece may be lost or changed in transit. The piece after it then continues no other, because its first
        observation differs from the final observation that is stored.

        Returns:
            The slots of the rows' observations [N] and of the final observations [K], and the rows that are continued.
        """
        first, starts = self._count, np.cumsum(batch.lengths, dtype=np.int64) - batch.lengths
        final_slots = self.observations.add(finals)
        joined = np.flatnonzero(before >= 0)
        earlier = before[joined]
        stored, shared = earlier < first, np.empty(len(joined), np.int64)
        shared[stored] = self._rows["next_slot"].take(earlier[stored] % self.capacity)
        shared[~stored] = final_slots[np.searchsorted(starts, earlier[~stored] - first, side="right") - 1]
        same = _equal(self.observations.read(shared), rows.rows(starts[joined]))
        fresh = np.ones(batch.num_rows, np.bool_)
        fresh[starts[joined[same]]] = False
        slots = np.empty(batch.num_rows, np.int64)
        slots[~fresh] = shared[same]
        slots[fresh] = self.observations.add(rows.rows(fresh))
        return slots, final_slots, earlier[same]

    def _add_starts(self, batch: TrajectoryBatch) -> None:
        cuts = SequenceCuts.of(batch.lengths, self.sequence_length)
        piece = np.searchsorted(cuts.first, np.arange(len(cuts)), side="right") - 1
        inside = np.diff(piece, prepend=-1) == 0
        at = np.arange(self._start_count, self._start_count + len(cuts)) % self.capacity
        self._starts["row"].put(at, self._count + cuts.starts)
        self._starts["length"].put(at, cuts.sizes)
        self._starts["memories"].put(at, batch.rows["memories"][cuts.starts])
        for name in self._previous:
            values = batch.trajectories[name][piece]
            values[inside] = batch.rows[name.removeprefix("previous_")][cuts.starts[inside] - 1]
            self._starts[name].put(at, values)
        self._start_count += len(cuts)


def replayed_columns(spec: BehaviorSpec) -> list[Column]:
    """Return the row columns of a batch that a replay memory keeps, in addition to observations."""
    masks = [Column("action_masks", "bool", (spec.actions.mask_size,))] if spec.actions.masked else []
    return [Column("rewards", "float32"), *action_columns(spec), *masks]


def _equal(first: EncodedObservations, second: EncodedObservations) -> NDArray[np.bool_]:
    """Return a mask [n], true where the observations are equal."""
    same: NDArray[np.bool_] = (first.vectors == second.vectors).all(axis=1)
    for one, other in zip(first.others, second.others, strict=True):
        same &= (one == other).all(axis=tuple(range(1, one.ndim)))
    return same


# Columns, which allocate memory only as they fill, and the slots of observations.

_FIRST_ROWS = 1024


class LazyColumn:
    """Rows of one shape and dtype, in an array that grows as rows are written.

    Reserving memory for all rows at the start could fail: 10^6 images of 84×84×4 take 28 GB. The array grows by an
    eighth at a time; on Linux, a large array grows without being copied.

    Args:
        column: name, dtype and shape of a row.
        capacity: the maximum number of rows.

    Attributes:
        rows: [n, *shape] the rows, of which some may not have been written yet.
    """

    def __init__(self, column: Column, capacity: int) -> None:
        self.name = column.name
        self.rows: Array = np.empty((0, *column.shape), column.dtype)
        self._capacity = capacity

    def take(self, index: Index) -> Array:
        """Return rows [n, *shape] that have been written, as a new array."""
        return self.rows.take(index, axis=0)

    def put(self, index: Index, rows: Array) -> None:
        """Write rows [n, *shape] to positions [n], each below the capacity."""
        if len(index):
            self.reserve(int(index.max()) + 1)
            self.rows[index] = rows

    def reserve(self, rows: int) -> None:
        """Allocate at least this many rows; invalidate all views of the rows."""
        present = len(self.rows)
        if rows > present:
            grown = min(self._capacity, max(rows, present + present // 8, _FIRST_ROWS))
            self.rows.resize((grown, *self.rows.shape[1:]), refcheck=False)


class ObservationStore:
    """Stores encoded observations in slots, each only once even if several rows refer to it.

    Slots are row numbers 0, 1, …; the slots freed last are the first to be reused.

    Args:
        layout: the columns of an observation.
        capacity: the maximum number of slots that may be in use at the same time.

    Attributes:
        touched: the number of slots that have ever been in use. These slots have the lowest numbers, and only they take
            memory.
    """

    def __init__(self, layout: ObservationLayout, capacity: int) -> None:
        self.columns = [LazyColumn(column, capacity) for column in layout.columns()]
        self._free: Index = np.empty(0, np.int64)
        self.touched = 0

    def __len__(self) -> int:
        """Return the number of slots in use."""
        return self.touched - len(self._free)

    def add(self, observations: EncodedObservations) -> Index:
        """Write n observations into free slots; return the slots [n], as a new array."""
        count = len(observations.vectors)
        kept = max(0, len(self._free) - count)
        reused, self._free = self._free[kept:], self._free[:kept]
        fresh = np.arange(self.touched, self.touched + count - len(reused))
        self.touched += len(fresh)
        slots = np.concatenate((reused, fresh))
        for column, array in zip(self.columns, (observations.vectors, *observations.others), strict=True):
            column.put(slots, array)
        return slots

    def release(self, slots: Index) -> None:
        """Free slots that are in use."""
        self._free = np.concatenate((self._free, slots))

    def restore(self, touched: int, used: Index) -> None:
        """Mark only the slots in `used` as in use; all of them are below `touched`."""
        free = np.ones(touched, np.bool_)
        free[used] = False
        self._free = np.flatnonzero(free)
        self.touched = touched

    def read(self, slots: Index) -> EncodedObservations:
        """Return the observations in n slots, as new arrays."""
        vectors, *images = self.columns
        others = list[Array]()
        for column in images:
            others.append(column.take(slots))
        return EncodedObservations(vectors.take(slots), tuple(others))


# Rows as input to each network.


class ReplayMinibatch(NamedTuple):
    """B rows; with memory, S sequences of L rows each, concatenated. Axis letters as in `sac`."""

    actor_inputs: Inputs
    """Normalised observations; with memory, each sequence starts from the actor's recorded memory."""
    critic_inputs: Inputs
    """The same observations; with memory, each sequence starts from zeros, because critics' memories are not
    recorded."""
    target_inputs: Inputs
    """The target network's observations. Without memory, these are the next observations [B]. With memory, each
    sequence has L + 1 rows: its observations, and the next observation of its last row. The memory starts from zeros,
    and a sequence's first row serves only to fill it."""
    continuous: Tensor
    """[B, C] continuous actions as the policy drew them."""
    choices: tuple[Tensor, ...]
    """For each branch, [B, 1] int64: the index of the choice among all branches' choices."""
    penalties: Tensor | None
    """[B, A] penalties added to logits: `MASK_PENALTY` for forbidden choices, else 0; None without masks."""
    allowed: Tensor | None
    """[B, K] the number of allowed choices in each branch; None without masks."""
    mask: Tensor | None
    """[B] 1 for real rows, 0 for padding; None without memory."""


def as_replayed(batch: TrajectoryBatch, rows: EncodedObservations, finals: EncodedObservations) -> ReplayedRows:
    """Convert trajectories to the form of replayed rows, each with its next observation."""
    last = np.cumsum(batch.lengths) - 1
    following = np.minimum(np.arange(batch.num_rows) + 1, batch.num_rows - 1)
    terminated = np.zeros(batch.num_rows, np.bool_)
    terminated[last] = batch.terminated

    def next_of(row: Array, final: Array) -> Array:
        array = row[following]
        array[last] = final
        return array

    others = tuple(next_of(row, final) for row, final in zip(rows.others, finals.others, strict=True))
    columns = {**batch.rows, "terminated": terminated}
    return ReplayedRows(rows, EncodedObservations(next_of(rows.vectors, finals.vectors), others), columns)


class MinibatchMaker:
    """Makes minibatches for a behaviour.

    Args:
        intake: the intake whose normaliser is applied.
        actions: the behaviour's actions.
        device: the device to learn on.
    """

    def __init__(self, intake: ObservationPreprocessor, actions: ActionSpec, device: str) -> None:
        self._intake = intake
        self._actions = actions
        self._device = device
        self._begins = np.cumsum((0, *actions.discrete_branches))[:-1]
        self._offsets = torch.from_numpy(self._begins).to(device)

    def transitions(self, replayed: ReplayedRows) -> Transitions:
        """Convert the memory's rows to transitions for reward signals, including padding."""
        columns = replayed.columns
        continuous, choices = drawn_actions(self._actions, columns, len(columns["rewards"]))
        return Transitions(
            Inputs.from_encoded(replayed.observations, self._device),
            Inputs.from_encoded(replayed.next_observations, self._device),
            self._tensor(continuous),
            self._tensor(choices.astype(np.int64)),
            self._tensor(columns["rewards"]),
            self._tensor(columns["terminated"].astype(np.float32)),
        )

    def minibatch(self, replayed: ReplayedRows, transitions: Transitions) -> ReplayMinibatch:
        """Convert the memory's rows, which the caller also passes as transitions, to a minibatch for the update."""
        inputs, target = transitions.inputs, transitions.next_inputs
        if self._intake.normalizer is not None:
            inputs = self._normalized(replayed.observations.vectors, inputs)
            target = self._normalized(replayed.next_observations.vectors, target)
        actor, mask = inputs, None
        sequences = replayed.sequences
        if sequences is not None:
            actor, inputs, target = self._with_memory(replayed, sequences, inputs, target)
            mask = self._tensor(sequences.mask.astype(np.float32))
        choices: tuple[Tensor, ...] = ()
        if self._actions.discrete_branches:
            choices = torch.split(transitions.choices + self._offsets, 1, dim=1)
        penalties = allowed = None
        if self._actions.masked:
            masks = replayed.columns["action_masks"]
            penalties = self._tensor(np.where(masks, np.float32(0), MASK_PENALTY))
            allowed = self._tensor(np.add.reduceat(masks, self._begins, axis=1, dtype=np.float32))
        return ReplayMinibatch(actor, inputs, target, transitions.continuous, choices, penalties, allowed, mask)

    def _normalized(self, vectors: Array, inputs: Inputs) -> Inputs:
        return inputs._replace(vectors=self._tensor(self._intake.normalized(vectors)), vectors_rest=None)

    def _with_memory(
        self, replayed: ReplayedRows, sequences: ReplayedSequences, inputs: Inputs, following: Inputs
    ) -> tuple[Inputs, Inputs, Inputs]:
        """Return the inputs of actor, critics and target, given S × L rows' observations and next observations."""
        length = sequences.length
        first = self._features(sequences.previous, "previous_")[:, None]
        taken = self._features(replayed.columns, "")
        before = self._tensor(np.concatenate((first, taken.reshape(len(first), length, taken.shape[1])), axis=1))
        memories = self._tensor(sequences.memories)
        zeros = torch.zeros_like(memories)

        def joined(one: Tensor, other: Tensor) -> Tensor:
            """Return each sequence's first observation and its next observations, as S * (L + 1) rows."""
            parts = (tensor.view(len(first), length, *tensor.shape[1:]) for tensor in (one, other))
            begun, rest = parts
            return torch.cat((begun[:, :1], rest), dim=1).flatten(0, 1)

        inputs = inputs._replace(previous_actions=before[:, :-1].flatten(0, 1), sequence_length=length)
        target = Inputs(
            joined(inputs.vectors, following.vectors),
            tuple(joined(one, other) for one, other in zip(inputs.others, following.others, strict=True)),
            before.flatten(0, 1),
            zeros,
            length + 1,
        )
        return inputs._replace(memories=memories), inputs._replace(memories=zeros), target

    def _features(self, columns: Mapping[str, Array], prefix: str) -> NDArray[np.float32]:
        drawn, choices = drawn_actions(self._actions, columns, len(next(iter(columns.values()))), prefix)
        return action_features(self._actions, environment_actions(self._actions, drawn, squashed=True), choices)

    def _tensor(self, array: Array) -> Tensor:
        return to_device(torch.from_numpy(np.require(array, requirements=("C", "W"))), self._device)


def part_of(replayed: ReplayedRows, rows: int, replicas: Replicas) -> tuple[ReplayedRows, ReplicaSlice, float]:
    """Return a replica's part of a sample: its rows, their position among all rows, and the weight of their mean."""
    sequences = replayed.sequences
    length = 1 if sequences is None else sequences.length
    counted = replicas.part(rows // length)
    here = ReplicaSlice(slice(counted.rows.start * length, counted.rows.stop * length), counted.weight)
    part = replayed.part(here.rows)
    if sequences is None or part.sequences is None:
        return part, here, here.size * here.weight / rows
    return part, here, float(part.sequences.mask.sum() * here.weight / sequences.mask.sum())


# Measurements of gradient steps on minibatches (losses, values and entropies), and their statistics.

LOSSES = ("Policy Loss", "Q1 Loss", "Q2 Loss", "Value Loss")


class UpdateMeasures(NamedTuple):
    """Losses and values from one gradient step, on the device. Axis letters as in `sac`."""

    losses: Tensor
    """[4] the losses, in the order of `LOSSES`."""
    q1: Tensor
    """[B, S] the first Q's values of the actions taken."""
    q2: Tensor
    targets: Tensor
    """[B, S] the targets of both Qs."""
    values: Tensor
    """[B, S] V's values; if there is no V, the soft values that V would learn."""
    negentropies: Tensor
    """[B, G] the negative entropies; see `soft_values`."""
    mask: Tensor | None


def statistics_of(
    measured: Sequence[UpdateMeasures],
    norms: Sequence[float],
    signals: Sequence[str],
    replicas: Replicas,
    parts: Sequence[tuple[ReplicaSlice, int]],
) -> dict[str, float]:
    """Return statistics of several gradient steps without padding, keyed by statistic name.

    Args:
        measured: the measurements of each step; the caller reports the losses.
        norms: the norms of the actor's and the critics' gradients; empty if not measured.
        signals: the reward signals' names.
        replicas: the replicas that took the same steps.
        parts: for each step, this replica's part of the minibatch's rows, and the number of all rows.
    """
    tables = list[Tensor]()
    for measures, (here, rows) in zip(measured, parts, strict=True):
        columns = [measures.q1, measures.q2, measures.targets, measures.values, measures.negentropies]
        mask = [] if measures.mask is None else [measures.mask[:, None]]
        tables.append(replicas.gathered(torch.cat([*columns, *mask], dim=1), here, rows))
    table, width = torch.cat(tables), len(signals)
    if measured[0].mask is not None:
        table = table[table[:, -1] > 0, :-1]
    q1, q2, targets, values = (table[:, at * width : (at + 1) * width] for at in range(4))
    of_rows, log_probs = torch.stack([q1, q2, values, (q1 - targets).abs_()]), table[:, 4 * width :].sum(dim=1)
    # Together: fetching each number separately costs as much as a layer, and updates happen every few steps.
    least, greatest = torch.aminmax(of_rows.flatten(1), dim=1)
    per_signal = of_rows.mean(dim=1)  # [4, S]
    ends = torch.stack([least, per_signal.mean(dim=1), greatest], dim=1)
    of_probs = torch.stack([log_probs.min(), log_probs.mean(), log_probs.max()])
    numbers = torch.cat([ends.flatten(), of_probs, per_signal[2]]).tolist()
    statistics = dict[str, float]()
    for what, norm in zip(("Actor", "Critic"), norms, strict=bool(norms)):
        statistics[f"Policy/{what} Gradient Norm"] = norm
    for at, name in enumerate(("Q1", "Q2", "Value", "TD Error", "Log Probability")):
        for kind, number in zip(("Min", "Mean", "Max"), numbers[3 * at : 3 * at + 3], strict=True):
            statistics[f"Policy/{name} {kind}"] = number
    statistics["Policy/Entropy"] = -statistics["Policy/Log Probability Mean"]
    for name, mean in zip(signals, numbers[15:], strict=True):
        statistics[f"Policy/{name.capitalize()} Value"] = mean
    return statistics


# The file of a memory.

# The file is a zip archive, whose checksums detect damage. It has the JSON entry `HEADER` and an entry for each column,
# named by its number, with the bytes of the rows in use. The columns are written from, and read into, the memory's own
# arrays, so a large memory is never held twice. The file is either complete or absent: it is written under a temporary
# name, synced to disk, and renamed. Numbers are little-endian, like all platforms that torch runs on.
HEADER = "memory.json"
FORMAT = 1

_CHUNK_BYTES = 2**24


class SavedMemory(Protocol):
    """A replay memory that can be written to a file."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """The YAML settings that determine the memory's shape; a file must have the same values."""

    def facts(self) -> dict[str, Any]:
        """Return everything except the columns, as numbers and lists of numbers."""

    def columns(self) -> list[tuple[LazyColumn, int]]:
        """Return all columns, each with the number of leading rows in use."""

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Restore `facts()`; the caller must then fill the columns and call `restored`."""

    def restored(self) -> None:
        """Finish restoring, once all columns are filled."""

    def clear(self) -> None:
        """Remove all rows."""


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

    def write(file: BinaryIO) -> None:
        with ZipFile(file, "w") as archive:
            header = {"format": FORMAT, "facts": memory.facts(), "columns": _described(memory), "step": step}
            archive.writestr(HEADER, json.dumps(header))
            for number, (column, rows) in enumerate(memory.columns()):
                with archive.open(str(number), mode="w", force_zip64=True) as entry:
                    entry.write(_bytes_of(column, rows))

    write_atomic(path, write)


def read_replay(memory: SavedMemory, path: Path, step: int = 0) -> None:
    """Fill a memory from a file that `write_replay` wrote at the same step; after a failure, the memory is empty.

    Raises:
        ReplayFileError: if the file is missing, truncated or modified, or belongs to a different memory or step.
    """
    try:
        with open_archive(path) as archive:
            _read(memory, archive, step)
    except (OSError, ReplayFileError) as error:
        memory.clear()
        raise ReplayFileError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    except Exception as error:  # damage may raise anything
        memory.clear()
        raise ReplayFileError(f"{path}: truncated, damaged, or not a replay buffer: {error!r}") from error


def _read(memory: SavedMemory, archive: ZipFile, step: int) -> None:
    saved = json.loads(archive.read(HEADER))
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
    for number, (column, rows) in enumerate(memory.columns()):
        with archive.open(str(number)) as entry:
            rest = _bytes_of(column, rows)
            while count := entry.readinto(rest[:_CHUNK_BYTES]):  # type: ignore[attr-defined]  # IO[bytes] lacks it
                rest = rest[count:]
            if rest or entry.read(1):
                raise ReplayFileError(f"the file's column {column.name} has a wrong size")
    memory.restored()


def _described(memory: SavedMemory) -> list[list[Any]]:
    columns = memory.columns()
    return [[column.name, column.rows.dtype.str, list(column.rows.shape[1:]), rows] for column, rows in columns]


def _bytes_of(column: LazyColumn, rows: int) -> memoryview:
    """Return the memory of a column's leading rows, without copying it."""
    column.reserve(rows)
    return memoryview(column.rows[:rows].reshape(-1).view("u1"))  # type: ignore[arg-type]  # an array is a buffer

"""The replay memory: the newest `capacity` steps in preallocated columns, sampled uniformly.

Observations are stored separately (`ObservationStore`), and rows refer to them. A step's next observation is also the
observation of the next step, so it is stored only once. This also holds across pieces of a trajectory: a piece's first
observation is the final observation of the previous piece. `replay_store` writes the memory to disk.

Axis letters: N rows and K pieces in a batch, B rows in a sample, S sequences of L rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.queues.columns import Column, action_columns, memory_column
from headrace.queues.messages import Array, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.policy.observations import EncodedObservations, ObservationLayout

Index = NDArray[np.int64]

BLOCK_BYTES = 2**30


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
        return ReplayedRows(_pick(self.observations, rows), _pick(self.next_observations, rows), columns, sequences)


class ReplayMemory:
    """A ring of rows, and the observations that they refer to.

    Args:
        spec: observations and actions.
        layout: the layout of encoded observations.
        capacity: the number of rows kept; each new row replaces the oldest one.
        memory_size: m, for a policy with memory.
        sequence_length: L, for a policy with memory: sequences start at the start of each piece, and at each multiple
            of L within it.
        block_bytes: see `LazyColumn`.
    """

    def __init__(
        self,
        spec: BehaviorSpec,
        layout: ObservationLayout,
        capacity: int,
        memory_size: int = 0,
        sequence_length: int = 0,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self.capacity = capacity
        self.sequence_length = sequence_length
        masks = [Column("action_masks", "bool", (spec.actions.mask_size,))] if spec.actions.masked else []
        sampled = [Column("rewards", "float32"), Column("terminated", "bool"), *action_columns(spec), *masks]
        references = [Column("slot", "int64"), Column("next_slot", "int64"), Column("continued", "bool")]
        self._sampled = [column.name for column in sampled]
        self._rows = {c.name: LazyColumn(c, capacity, block_bytes) for c in (*sampled, *references)}
        # In the worst case, each row has a separate observation and next observation.
        self.observations = ObservationStore(layout, 2 * capacity, block_bytes)
        starts = [Column("row", "int64"), Column("length", "int64"), memory_column(memory_size)]
        starts += action_columns(spec, "previous_")
        self._starts = {c.name: LazyColumn(c, capacity, block_bytes) for c in starts} if sequence_length else {}
        self._previous = [column.name for column in action_columns(spec, "previous_")]
        self.clear()

    def clear(self) -> None:
        """Remove all rows."""
        self._count = 0  # number of rows ever added: row i is stored at i % capacity
        self._start_count = 0  # number of sequences ever begun, stored in the same way
        self._first_start = 0  # number of the first sequence whose first row is still stored
        self._open: dict[int, tuple[int, int]] = {}  # agent → episode, and the newest row of its unfinished trajectory
        self.observations.clear()

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
        """
        first, oldest = self._count, max(0, self._count + batch.num_rows - self.capacity)
        self._evict(min(oldest, first))
        before = self._continue(batch)
        if self.sequence_length:
            self._add_starts(batch, oldest)
        # If a batch is larger than the memory, only its newest rows are kept.
        skip = max(0, oldest - first)
        ends = np.cumsum(batch.lengths, dtype=np.int64)
        kept = slice(int(np.searchsorted(ends, skip, side="right")), None)
        begins = (ends - batch.lengths)[kept]
        before = np.where((before[kept] >= oldest) & (begins >= skip), before[kept], -1)
        begins = np.maximum(begins, skip)
        pieces = _Pieces(first, begins, ends[kept], before, _pick(rows, slice(skip, None)), _pick(finals, kept), skip)
        slots, next_slots = self._store_observations(pieces)
        at = np.arange(first + skip, first + batch.num_rows) % self.capacity
        terminated = np.zeros(batch.num_rows, np.bool_)
        terminated[ends - 1] = batch.terminated
        columns = {**batch.rows, "terminated": terminated}
        for name in self._sampled:
            self._rows[name].put(at, columns[name][skip:])
        self._rows["slot"].put(at, slots)
        self._rows["next_slot"].put(at, next_slots)
        continued = np.ones(batch.num_rows, np.bool_)
        continued[ends - 1] = False
        self._rows["continued"].put(at, continued[skip:])
        joined = pieces.before[pieces.before >= 0] % self.capacity
        self._rows["continued"].put(joined, np.ones(len(joined), np.bool_))
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
            "open": [[agent, *known] for agent, known in self._open.items()],
        }

    @property
    def sizes(self) -> Mapping[str, int]:
        """The YAML settings that determine the memory's shape."""
        return {"buffer_size": self.capacity, "sequence_length": self.sequence_length}

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
            known = self._open.pop(agent, None)
            if known is not None and known[0] == episode:
                before[k] = known[1]
            if not over[k]:
                self._open[agent] = (episode, last)
        return before

    def _store_observations(self, pieces: _Pieces) -> tuple[Index, Index]:
        """Store observations not stored yet; return the slots of each row's observation and next observation."""
        lengths = pieces.ends - pieces.begins
        piece = np.repeat(np.arange(len(lengths)), lengths)
        at = np.arange(len(piece)) + piece  # in `slots`, each piece has its rows' observations, then the final one
        first_at = pieces.begins - pieces.skip + np.arange(len(lengths))
        final_at = first_at + lengths
        stored, within = self._find_continued(pieces)
        own = np.ones(len(piece) + len(lengths), np.bool_)
        own[first_at[pieces.before >= 0]] = False
        slots = np.empty(len(own), np.int64)
        slots[own] = self.observations.allocate(int(own.sum()))
        slots[first_at[stored]] = self._rows["next_slot"].take(pieces.before[stored] % self.capacity)
        slots[first_at[within]] = slots[final_at[pieces.containing(pieces.before[within])]]
        new_rows = own[at]
        self.observations.write(slots[at[new_rows]], _pick(pieces.rows, new_rows))
        self.observations.write(slots[final_at], pieces.finals)
        return slots[at], slots[at + 1]

    def _find_continued(self, pieces: _Pieces) -> tuple[Index, Index]:
        """Find the pieces that continue a stored piece, and the pieces that continue another piece of the same batch.

        A piece may be lost or changed in transit. Then no piece continues it: the next piece's `before` becomes -1.
        """
        found = []
        for chosen in (
            np.flatnonzero((pieces.before >= 0) & (pieces.before < pieces.first)),
            np.flatnonzero(pieces.before >= pieces.first),
        ):
            if not len(chosen):
                found.append(chosen)
                continue
            before = pieces.before[chosen]
            if before[0] < pieces.first:
                there = self.observations.read(self._rows["next_slot"].take(before % self.capacity))
            else:
                there = _pick(pieces.finals, pieces.containing(before))
            same = _equal(there, _pick(pieces.rows, pieces.begins[chosen] - pieces.skip))
            pieces.before[chosen[~same]] = -1
            found.append(chosen[same])
        return found[0], found[1]

    def _add_starts(self, batch: TrajectoryBatch, oldest: int) -> None:
        length = self.sequence_length
        lengths = batch.lengths.astype(np.int64)
        counts = -(-lengths // length)
        piece = np.repeat(np.arange(len(lengths)), counts)
        offset = (np.arange(len(piece)) - np.repeat(np.cumsum(counts) - counts, counts)) * length
        row = (np.cumsum(lengths) - lengths)[piece] + offset
        kept = self._count + row >= oldest
        piece, offset, row = piece[kept], offset[kept], row[kept]
        at = np.arange(self._start_count, self._start_count + len(row)) % self.capacity
        self._starts["row"].put(at, self._count + row)
        self._starts["length"].put(at, np.minimum(length, lengths[piece] - offset))
        self._starts["memories"].put(at, batch.rows["memories"][row])
        for name in self._previous:
            values = batch.trajectories[name][piece]
            inside = offset > 0
            values[inside] = batch.rows[name.removeprefix("previous_")][row[inside] - 1]
            self._starts[name].put(at, values)
        self._start_count += len(row)


def replayed_columns(spec: BehaviorSpec) -> list[str]:
    """Return the names of the batch columns that a replay memory keeps, in addition to observations."""
    masks = ["action_masks"] if spec.actions.masked else []
    return ["rewards", *(column.name for column in action_columns(spec)), *masks]


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The pieces of a batch that the memory keeps."""

    first: int
    """Index of the batch's first row, counted over all rows ever added."""
    begins: Index
    """[K] the first row of each piece within the batch."""
    ends: Index
    """[K] the row after each piece's last row, within the batch."""
    before: Index
    """[K] index of the row that each piece continues, counted over all rows ever added; -1 for none."""
    rows: EncodedObservations
    """[N - skip, ...] the observations of the rows that are kept."""
    finals: EncodedObservations
    """[K, ...] the pieces' final observations."""
    skip: int
    """Number of rows at the start of the batch that are not kept."""

    def containing(self, numbers: Index) -> Index:
        """Return the indices of the pieces that contain these rows, which are counted over all rows ever added."""
        return np.searchsorted(self.ends, numbers - self.first, side="right").astype(np.int64)


def _pick(observations: EncodedObservations, index: slice | Index | NDArray[np.bool_]) -> EncodedObservations:
    return EncodedObservations(observations.vectors[index], tuple(other[index] for other in observations.others))


def _equal(first: EncodedObservations, second: EncodedObservations) -> NDArray[np.bool_]:
    """Return a mask [n], true where the observations are equal."""
    same: NDArray[np.bool_] = (first.vectors == second.vectors).all(axis=1)
    for one, other in zip(first.others, second.others, strict=True):
        same &= (one == other).reshape(len(one), -1).all(axis=1)
    return same


# Columns, which allocate memory only as they fill, and the slots of observations.

_FIRST_SLOTS = 1024


class LazyColumn:
    """Rows of one shape and dtype, in blocks that are allocated when first written to.

    On Linux, `np.empty` of a large array costs nothing until its pages are written. But a system may refuse to reserve
    more memory than it has, and 10^6 images of 84×84×4 take 28 GB. Blocks are therefore limited to `block_bytes`. A
    column that fits into one block, as vectors usually do, is a single array, so gathering from it is one operation.

    Args:
        column: name, dtype and shape of a row.
        capacity: the maximum number of rows.
        block_bytes: the maximum size of a block in bytes (but at least one row).
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
        """Return rows [n, *shape] that have been written, as a new array."""
        if len(self._blocks) == 1:
            return self._blocks[0].take(index, axis=0)
        out = np.empty((len(index), *self.shape), self.dtype)
        for block, chosen, at in self._by_block(index):
            out[chosen] = block[at]
        return out

    def put(self, index: Index, rows: Array) -> None:
        """Write rows [n, *shape] to positions [n], each below the capacity."""
        if not len(index):
            return
        self._reach(int(index.max()) + 1)
        if len(self._blocks) == 1:
            self._blocks[0][index] = rows
            return
        for block, chosen, at in self._by_block(index):
            block[at] = rows[chosen]

    def parts(self, rows: int) -> Iterator[Array]:
        """Yield the first `rows` rows as views of contiguous arrays, allocating blocks that were never written to."""
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


class ReusedSlots:
    """Allocates slots, which are row numbers 0, 1, …; the slots freed last are the first to be reused.

    Memory use grows with the largest number of slots in use at the same time, not with `capacity`.

    Args:
        capacity: the maximum number of slots that may be in use at the same time.

    Attributes:
        touched: the number of slots that have ever been in use. These slots have the lowest numbers, and only they take
            memory.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._slots: Index = np.empty(0, np.int64)
        """The slots in use, followed by the free slots."""
        self._used = self.touched = 0

    def clear(self) -> None:
        """Free all slots, as if none had ever been in use."""
        self.restore(0, np.empty(0, np.int64))

    def __len__(self) -> int:
        """Return the number of slots in use."""
        return self._used

    def allocate(self, count: int) -> Index:
        """Mark `count` free slots as in use, and return them as a new array [count]."""
        total, missing = len(self._slots), self._used + count - len(self._slots)
        if missing > 0:
            grown = min(self._capacity, total + max(missing, total, _FIRST_SLOTS))
            self._slots = np.concatenate((self._slots, np.arange(total, grown)))
        slots = self._slots[self._used : self._used + count].copy()
        self._used += count
        if count:
            self.touched = max(self.touched, int(slots.max()) + 1)
        return slots

    def release(self, slots: Index) -> None:
        """Free slots that are in use."""
        self._used -= len(slots)
        self._slots[self._used : self._used + len(slots)] = slots

    def restore(self, touched: int, used: Index) -> None:
        """Mark the slots in `used` as in use; all of them are below `touched`."""
        free = np.ones(touched, np.bool_)
        free[used] = False
        self._slots = np.concatenate((used, np.flatnonzero(free)))
        self._used, self.touched = len(used), touched


class ObservationStore(ReusedSlots):
    """Stores encoded observations in slots, each only once even if several rows refer to it.

    Args:
        layout: the columns of an observation.
        capacity: the maximum number of slots that may be in use at the same time.
        block_bytes: see `LazyColumn`.
    """

    def __init__(self, layout: ObservationLayout, capacity: int, block_bytes: int = BLOCK_BYTES) -> None:
        super().__init__(capacity)
        self.columns = [LazyColumn(column, capacity, block_bytes) for column in layout.columns()]

    def write(self, slots: Index, observations: EncodedObservations) -> None:
        """Write n observations into n slots."""
        for column, array in zip(self.columns, (observations.vectors, *observations.others), strict=True):
            column.put(slots, array)

    def read(self, slots: Index) -> EncodedObservations:
        """Return the observations in n slots, as new arrays."""
        vectors, *images = self.columns
        others = list[Array]()
        for column in images:
            others.append(column.take(slots))
        return EncodedObservations(vectors.take(slots), tuple(others))

    def vectors(self, slots: Index) -> Array:
        """Return only the vectors of the observations in n slots, as a new array."""
        return self.columns[0].take(slots)

"""IMPALA's rows: an update's unrolls in the form that network and losses expect, and the replay of past unrolls.

Axis letters: N rows, of which the first F are fresh and the others replayed; K trajectories; C continuous actions; H
head outputs; S signals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.queues.columns import Column
from headrace.queues.messages import Array, Columns
from headrace.stages.policy.network.layers import Inputs, to_device
from headrace.stages.trainer.on_policy.rollout import InputRows
from headrace.stages.trainer.protocol import Part, Replicas
from headrace.stages.trainer.replay.replay_memory import LazyColumn, ReusedSlots

# Unrolls are concatenated rows, with fresh ones first. Trajectories are consecutive, and none is longer than an unroll.
# Without memory, the network evaluates the rows, followed by the final observations, in one pass. With memory, each
# trajectory is a sequence, from the actor's memory at its start to the observation after its last row, and is padded to
# the longest one.


@dataclass(frozen=True, slots=True)
class Recorded:
    """Data about the N - F replayed rows, recorded when the rows were created or first learned from."""

    heads: Tensor | None
    """[N - F, …] the acting policies' head outputs, including mask penalties; None without policy cloning."""
    values: Tensor
    """[N - F, S] the critic's values when the rows were first learned from."""


# Unrolls are cut from pieces of any length, so flow control may close a trajectory at any row (docs/decisions/038).
@dataclass(frozen=True, slots=True)
class Unrolls:
    """The rows of one update, fresh and replayed."""

    inputs: Inputs
    """The network's inputs: rows and final observations."""
    places: Tensor | None
    """[N + K] indices, in the network's outputs, of rows and then final observations; None if that is their order."""
    continuous: Tensor
    """[N, C] raw continuous actions."""
    choices: tuple[Tensor, ...]
    """For each branch, the choices [N, 1] int64."""
    penalties: Tensor | None
    """[N, H] penalties added to head outputs: `MASK_PENALTY` for forbidden choices, else 0; None without masks."""
    acted: NDArray[np.float32]
    """[N] the joint actions' log-probabilities under the policies that acted."""
    rewards: NDArray[np.float64]
    """[N, S] rewards, scaled and clipped."""
    lengths: NDArray[np.int64]
    """[K] the number of rows of each trajectory."""
    valueless: NDArray[np.bool_]
    """[K, S] true if no reward can follow the trajectory's last row."""
    fresh: int
    """The number of fresh rows, F."""
    recorded: Recorded | None
    """Data about the replayed rows; None if all rows are fresh."""
    all_rows: int
    """The total number of rows over all replicas."""
    all_fresh: int
    """The total number of fresh rows over all replicas."""
    here: Part
    """The position of this replica's rows among the rows of all replicas."""

    def __len__(self) -> int:
        return len(self.acted)


def pieces_of(lengths: NDArray[np.int64], replicas: Replicas) -> tuple[slice, Part]:
    """Return a replica's part of K trajectories: their slice, and the position of their rows."""
    part, ends = replicas.part(len(lengths)), np.cumsum(lengths)
    first = int(ends[part.rows.start - 1]) if part.rows.start else 0
    return part.rows, Part(slice(first, int(ends[part.rows.stop - 1])), part.weight)


def joined_inputs(rows: InputRows, finals: InputRows) -> Inputs:
    """Return network inputs without memory: N rows, followed by K final observations."""
    pairs = zip(rows.others, finals.others, strict=True)
    others = tuple(to_device(torch.cat(pair), rows.device) for pair in pairs)
    return Inputs(torch.cat([rows.vectors, finals.vectors]), others)


def sequence_inputs(
    rows: InputRows, finals: InputRows, lengths: NDArray[np.int64], memories: Tensor
) -> tuple[Inputs, Tensor]:
    """Return network inputs for K sequences, each followed by its final observation, and the positions of the outputs.

    Args:
        rows: N rows, with previous actions.
        finals: K final observations, with previous actions.
        lengths: [K] the number of rows of each sequence.
        memories: [K, m] the memory before each sequence's first row.

    Returns:
        The inputs, and the indices [N + K] of the rows and final observations in the network's outputs.
    """
    assert rows.previous_actions is not None, "a policy with memory takes in its last action"
    assert finals.previous_actions is not None, "as it does after the last row"
    table = InputRows(
        torch.cat([rows.vectors, finals.vectors]),
        tuple(torch.cat(pair) for pair in zip(rows.others, finals.others, strict=True)),
        torch.cat([rows.previous_actions, finals.previous_actions]),
    )
    starts, width = np.cumsum(lengths) - lengths, int(lengths.max()) + 1
    steps, final = np.arange(width), len(rows) + np.arange(len(lengths))
    within = steps < lengths[:, None]
    index = np.where(within, starts[:, None] + steps, final[:, None])
    flat = np.arange(index.size).reshape(index.shape)
    places = np.concatenate([flat[within], flat[np.arange(len(lengths)), lengths]])
    return table.sequences(index, memories), to_device(torch.from_numpy(places), rows.device)


# The replay buffer holds past unrolls, some of which are drawn in addition to fresh ones. An unroll is T rows of
# consecutive trajectories; no trajectory crosses an unroll's boundaries. A trajectory's data other than rows is in a
# slot that the trajectory's last row refers to.


Index = NDArray[np.int64]
_ENDED = "piece"
"""Row column with the slot of the trajectory that ends with the row; -1 if no trajectory ends there."""


class UnrollReplay:
    """Keeps at most `capacity` unrolls, and draws from them uniformly.

    Args:
        rows: the row columns.
        trajectories: the trajectory columns, without lengths.
        unroll_length: T, the number of rows per unroll.
        capacity: the maximum number of unrolls to keep.
        sampling: `fifo` keeps the newest unrolls; `reservoir` keeps a uniform sample of all unrolls ever added (Vitter
            1985, "Random Sampling with a Reservoir", algorithm R).
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
        self._slots = ReusedSlots(most)
        self.clear()

    def clear(self) -> None:
        """Remove all unrolls."""
        self._added = 0
        self._count = 0
        self._slots.clear()

    def __len__(self) -> int:
        """Return the number of unrolls kept."""
        return self._count

    @property
    def sizes(self) -> Mapping[str, int]:
        """The YAML settings that determine the buffer's shape."""
        return {"replay_capacity": self._capacity, "unroll_length": self._length}

    def add(self, rows: Columns, trajectories: Columns, random: np.random.Generator) -> None:
        """Copy n unrolls into the buffer.

        Args:
            rows: the row columns [n * T].
            trajectories: the trajectory columns, including `lengths`.
            random: the generator that, for a reservoir, decides which unrolls are kept.
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
        slots = self._slots.allocate(len(pieces))
        ended = np.full(n * self._length, -1, np.int64)
        ended[last[pieces]] = slots
        source, target = self._rows_of(kept), self._rows_of(places)
        self._ended.put(target, ended[source])
        for name, column in self._rows.items():
            column.put(target, rows[name][source])
        for name, column in self._pieces.items():
            column.put(slots, trajectories[name][pieces])

    def draw(self, count: int, random: np.random.Generator) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return row and trajectory columns of `count` different unrolls; the buffer must hold that many."""
        at = self._rows_of(random.choice(self._count, count, replace=False))
        ended = self._ended.take(at)
        last = np.flatnonzero(ended >= 0)
        rows = {name: column.take(at) for name, column in self._rows.items()}
        trajectories = {name: column.take(ended[last]) for name, column in self._pieces.items()}
        return rows, {**trajectories, "lengths": np.diff(last, prepend=-1)}

    def facts(self) -> dict[str, Any]:
        """Return everything except the columns; see `headrace.stages.trainer.replay.replay_store`."""
        return {**self.sizes, "added": self._added, "count": self._count, "touched": self._slots.touched}

    def columns(self) -> list[tuple[LazyColumn, int]]:
        """Return all columns, each with the number of leading rows in use."""
        rows = self._count * self._length
        return [
            (self._ended, rows),
            *((column, rows) for column in self._rows.values()),
            *((column, self._slots.touched) for column in self._pieces.values()),
        ]

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Restore `facts()`; the caller must then fill the columns and call `restored`."""
        self.clear()
        self._added, self._count, self._slots.touched = (int(facts[name]) for name in ("added", "count", "touched"))

    def restored(self) -> None:
        """Find the slots in use. Call this once all columns are filled."""
        ended = self._ended.take(np.arange(self._count * self._length)) if self._count else np.empty(0, np.int64)
        self._slots.restore(self._slots.touched, ended[ended >= 0])

    def _places(self, n: int, random: np.random.Generator) -> tuple[Index, Index]:
        """Return the indices of those of n new unrolls that are kept, and their positions, which are all different."""
        numbers = self._added + np.arange(n)
        self._added += n
        if self._sampling == "fifo":
            places = numbers % self._capacity
        else:
            drawn = random.integers(0, numbers + 1)
            places = np.where(numbers < self._capacity, numbers, drawn)
        kept = np.flatnonzero(places < self._capacity)
        # If two unrolls get the same position, the later one is kept.
        _, first = np.unique(places[kept][::-1], return_index=True)
        kept = np.sort(kept[::-1][first])
        return kept, places[kept]

    def _rows_of(self, unrolls: Index) -> Index:
        rows: Index = (unrolls[:, None] * self._length + np.arange(self._length)).reshape(-1)
        return rows

    def _release(self, unrolls: Index) -> None:
        ended = self._ended.take(self._rows_of(unrolls)) if len(unrolls) else np.empty(0, np.int64)
        self._slots.release(ended[ended >= 0])

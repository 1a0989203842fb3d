"""Paged storage for unfinished trajectories, and the outbox for trajectories to emit as one batch.

A page holds one trajectory. It has room for `horizon` rows and two extra rows. The row after the last row in use holds
the next observation in its observation columns. The row before the next page's first row holds, in its action columns,
the action before that page's trajectory. Each step is therefore written once, on arrival, and everything that a
finished trajectory needs is read from its page.

Page 0 belongs to no agent: agents without an open decision point to its last row, `nowhere`. Values written to that row
are garbage, except for the actions, which are never written and stay 0: an episode's first row has 0 as its previous
action.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.queues.columns import GROUP_ROW_COLUMNS, GROUP_TRAJECTORY_COLUMNS
from headrace.queues.errors import ShapeError
from headrace.queues.messages import Array, Columns, StepBatch, TrajectoryBatch
from headrace.stages.slots import Element, FreeNumbers, Numbers, Where, enlarged

_ACTIONS = ("continuous_actions", "discrete_actions")


class PageColumn:
    """One column of the storage, [R, *shape].

    Attributes:
        values: the rows.
        records: the rows as [R] opaque elements; NumPy scatters them three times as fast as short rows.
        values_before: `values` shifted by one: index r gives the row before r.
        records_before: `records` shifted by one.
    """

    __slots__ = (
        "_dtype",
        "_memory",
        "_record",
        "_single",
        "name",
        "records",
        "records_before",
        "shape",
        "values",
        "values_before",
    )

    def __init__(self, name: str, like: Array, rows: int) -> None:
        self.name = name
        self.shape = like.shape[1:]
        self._dtype = like.dtype
        size = prod(self.shape)
        # A row of one number is already one element; NumPy has no elements of 0 bytes.
        self._single = size == 1
        self._record = None if size < 2 else np.dtype((np.void, size * like.itemsize))
        self._memory: Array = np.zeros((1 + rows, *self.shape), like.dtype)
        self._make_views()

    def as_records(self, values: Array) -> Array:
        """View values [n, *shape] as [n] opaque elements of this storage.

        Raises:
            ShapeError: if the values do not have this column's dtype and shape.
        """
        if values.shape[1:] != self.shape or values.dtype != self._dtype:
            raise ShapeError(
                f"column {self.name!r}: expected {self._dtype} rows of shape {self.shape}, as in the "
                f"first step, got {values.dtype} rows of shape {values.shape[1:]}"
            )
        if self._record is None:
            return values.ravel() if self._single else values
        buffer = values if values.flags.c_contiguous else np.ascontiguousarray(values)
        return np.ndarray(len(values), self._record, buffer)

    def grow(self, rows: int) -> None:
        """Enlarge the storage; arrays obtained earlier from the attributes become stale."""
        self._memory = enlarged(self._memory, 1 + rows)
        self._make_views()

    def _make_views(self) -> None:
        self.values, self.values_before = self._memory[1:], self._memory[:-1]
        self.records, self.records_before = self.as_records(self.values), self.as_records(self.values_before)


class Pages:
    """The pages of one behaviour id. Rows are numbered across all pages; a page starts at the row of its first step.

    Attributes:
        full: number of rows in a full page; the row after `nowhere` counts as full.
        stride: number of rows from the start of one page to the start of the next. `row % stride` is the number of rows
            that precede a row in its page, or `full` for the row after `nowhere`.
        free: the first rows of the free pages; rows obtained from `allocate` are valid until the next `release`.
        nowhere: the row that agents without an open decision point to.
        observations: the observation columns.
        decisions: the decision columns.
        actions: the columns of `decisions` that are actions.
        rewards: [R] the reward received after the row's action.
        versions: [R] the version of the policy that made the decision.
        of_groups: `columns.GROUP_ROW_COLUMNS` [R], keyed by name; empty for a behaviour without groups.
        env_frames: [R] the number of environment steps that the row's action lasted; None if it is always one.
    """

    def __init__(self, step: StepBatch, horizon: int) -> None:
        # Zero-dimensional arrays: for few rows, converting a Python number costs NumPy as much as everything else.
        self.full, self.nowhere = np.array(horizon, np.int64), np.array(horizon - 1, np.int64)
        self.stride = np.array(horizon + 2, np.int64)
        self._nowhere_bytes = self.nowhere.tobytes()
        stride = horizon + 2
        rows = (1 + 2 * len(step.agent_ids)) * stride
        self.free = FreeNumbers(np.arange(stride, rows, stride))
        self.observations = tuple(PageColumn(f"obs_{i}", o, rows) for i, o in enumerate(step.observations))
        self.decisions = tuple(PageColumn(name, values, rows) for name, values in step.decisions.items())
        self.actions = tuple(column for column in self.decisions if column.name in _ACTIONS)
        self.rewards = np.zeros(rows, np.float32)
        self.versions = np.zeros(rows, np.int64)
        grouped = step.group_ids is not None
        self.of_groups: dict[str, Array] = {c.name: np.zeros(rows, c.dtype) for c in GROUP_ROW_COLUMNS if grouped}
        self.env_frames = None if step.env_frames is None else np.zeros(rows, np.int32)
        self._names = step.decisions.keys()

    def allocate(self, count: int) -> Numbers:
        """Return the first rows [count] of free pages, which may enlarge the columns."""
        if self.free.in_use + count > self.free.size:
            self._grow(count)
        return self.free.allocate(count)

    def unwritten(self, rows: Numbers) -> Where:
        """Return the indices at which rows [k] are `nowhere`.

        The result is a slice if all rows are, which is the common case.
        """
        if rows.tobytes() == self._nowhere_bytes * len(rows):
            return slice(len(rows))
        places: Numbers = (rows == self.nowhere).nonzero()[0]
        return places

    def observation_records(self, observations: tuple[Array, ...]) -> list[tuple[PageColumn, Array]]:
        """Return the observation columns, each with its values [n, *shape] as records.

        Raises:
            ShapeError: if the observations differ in number, dtype or shape from those of the first step.
        """
        if len(observations) != len(self.observations):
            raise ShapeError(f"expected {len(self.observations)} observations, got {len(observations)}")
        return [(c, c.as_records(o)) for c, o in zip(self.observations, observations, strict=True)]

    def write_decisions(self, rows: Numbers, decisions: Columns, versions: NDArray[np.int64]) -> None:
        """Write decisions [d, …] to rows [d].

        Raises:
            ShapeError: if the columns differ in name, dtype or shape from those of the first step.
        """
        if decisions.keys() != self._names:
            raise ShapeError(f"expected decision columns {[*self._names]} as in the first step, got {[*decisions]}")
        for column in self.decisions:
            column.records[rows] = column.as_records(decisions[column.name])
        self.versions[rows] = versions

    def move(self, source: Numbers, target: Numbers) -> None:
        """Copy open decisions and their previous actions from rows `source` [n] to page starts `target` [n]."""
        for column in (*self.observations, *self.decisions):
            column.records[target] = column.records[source]
        self.versions[target] = self.versions[source]
        if self.of_groups:
            self.of_groups["ticks"][target] = self.of_groups["ticks"][source]
        for column in self.actions:
            column.records_before[target] = column.records_before[source]

    def _grow(self, count: int) -> None:
        present = len(self.rewards)
        stride = int(self.stride)
        rows = 2 * present + count * stride
        self.free.extend(np.arange(present, rows, stride))
        for column in (*self.observations, *self.decisions):
            column.grow(rows)
        self.rewards = enlarged(self.rewards, rows)
        self.versions = enlarged(self.versions, rows)
        if self.env_frames is not None:
            self.env_frames = enlarged(self.env_frames, rows)
        for name, values in self.of_groups.items():
            self.of_groups[name] = enlarged(values, rows)


# Plain tuples of arrays: constructing a frozen dataclass costs more than all other work on these columns.


class ClosedTrajectories(NamedTuple):
    """Columns [k] of k trajectories that closed together. The trajectories' rows are still in the pages."""

    ends: Numbers
    """[k] the row after each trajectory's last row."""
    agent_ids: Numbers
    episode_ids: Numbers
    generation: NDArray[np.int32]
    opponent: NDArray[np.int32]
    learning: NDArray[np.bool_]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


class EndedEpisodes(NamedTuple):
    """Columns of episodes that ended together."""

    agent_ids: Numbers
    returns: NDArray[np.float64]
    """Undiscounted sum of each episode's rewards."""
    steps: Numbers
    """Number of decisions in each episode."""
    learning: NDArray[np.bool_]
    parameters: NDArray[np.int32]
    """Generation of the environment parameters under which each episode began."""


_NO_IDS = np.empty(0, np.int64)
_NO_NUMBERS = np.empty(0, np.int32)
_NO_FLAGS = np.empty(0, np.bool_)
_NOTHING = ClosedTrajectories(_NO_IDS, _NO_IDS, _NO_IDS, _NO_NUMBERS, _NO_NUMBERS, _NO_FLAGS, _NO_FLAGS, _NO_FLAGS)


class Outbox:
    """One behaviour id's closed trajectories, ended episodes and game results that are not yet emitted.

    Attributes:
        rows: the total number of rows in these trajectories.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._emitted = 0
        self._closed: list[ClosedTrajectories] = []
        self._episodes: list[EndedEpisodes] = []
        self._games: list[Columns] = []
        self._trajectory_groups: list[Columns] = []
        self._episode_groups: list[Columns] = []

    def renumber(self) -> None:
        """Restart the numbering of trajectories at 0, for a new source."""
        self._emitted = 0

    def add(
        self,
        closed: ClosedTrajectories,
        rows: int,
        trajectory_groups: Columns | None = None,
        episodes: EndedEpisodes | None = None,
        episode_groups: Columns | None = None,
    ) -> None:
        """Add trajectories that closed together, and the episodes that ended with them.

        Args:
            closed: the trajectories.
            rows: the total number of rows in these trajectories.
            trajectory_groups: the trajectories' `GROUP_TRAJECTORY_COLUMNS`; None if the behaviour has no groups.
            episodes: the episodes; None if the agents play on.
            episode_groups: the episodes' `GROUP_EPISODE_COLUMNS`; None if the behaviour has no groups.
        """
        self._closed.append(closed)
        self.rows += rows
        if trajectory_groups is not None:
            self._trajectory_groups.append(trajectory_groups)
        if episodes is not None:
            self._episodes.append(episodes)
        if episode_groups is not None:
            self._episode_groups.append(episode_groups)

    def add_games(self, games: Columns) -> None:
        """Add game results, to emit with the next batch."""
        self._games.append({name: column.copy() for name, column in games.items()})

    def emit(self, pages: Pages, behavior_id: str, source: int) -> TrajectoryBatch | None:
        """Return everything in the outbox as one batch, and free its pages; return None if the outbox is empty.

        Game results without a trajectory make a batch without rows.
        """
        if not self._closed and not self._games:
            return None
        closed = ClosedTrajectories(*map(_joined, zip(*(self._closed or [_NOTHING]), strict=True)))
        if pages.of_groups and not self._closed:
            self._trajectory_groups = [{c.name: np.empty(0, c.dtype) for c in GROUP_TRAJECTORY_COLUMNS}]
        lengths = closed.ends % pages.stride
        starts = closed.ends - lengths
        rows = _row_columns(pages, closed.ends, lengths, self.rows)
        trajectories = _trajectory_columns(pages, starts, lengths, closed, self._emitted)
        episodes = _episode_columns(self._episodes) if self._episodes else {}
        if pages.of_groups:
            trajectories |= _joined_columns(self._trajectory_groups)
            episodes |= _joined_columns(self._episode_groups)
        games = _joined_columns(self._games) if self._games else {}
        batch = TrajectoryBatch(behavior_id, source, rows, trajectories, episodes, games)
        pages.free.release(starts)
        self._emitted += len(lengths)
        self._closed, self._episodes, self._games, self.rows = [], [], [], 0
        self._trajectory_groups, self._episode_groups = [], []
        return batch


def _joined(parts: Sequence[NDArray[Element]]) -> NDArray[Element]:
    """Concatenate contiguous arrays [k] that have the same dtype."""
    if len(parts) == 1:
        return parts[0]
    # For many small arrays, `concatenate` takes twice as long. A bytearray makes the result writable.
    return np.frombuffer(bytearray().join(parts), parts[0].dtype)  # type: ignore[arg-type]  # an array is a buffer


def _row_columns(pages: Pages, ends: Numbers, lengths: Numbers, total: int) -> Columns:
    """Gather the row columns [total, …]: for each page, the `lengths` [k] rows before row `ends` [k]."""
    at = (ends - lengths.cumsum()).repeat(lengths)
    at += np.arange(total)
    rows = {column.name: column.values.take(at, 0) for column in pages.observations}
    for column in pages.decisions:
        rows[column.name] = column.values.take(at, 0)
    rows["rewards"] = pages.rewards.take(at)
    if pages.env_frames is not None:
        rows["env_frames"] = pages.env_frames.take(at)
    for name, values in pages.of_groups.items():
        rows[name] = values.take(at)
    return rows


def _trajectory_columns(
    pages: Pages, starts: Numbers, lengths: Numbers, closed: ClosedTrajectories, first: int
) -> dict[str, Array]:
    """Return `columns.TRAJECTORY_COLUMNS` [k], numbered from `first`, with next observations and previous actions."""
    lengths = lengths.astype(np.int32)
    trajectories: dict[str, Array] = {
        "lengths": lengths,
        "agent_ids": closed.agent_ids,
        "episode_ids": closed.episode_ids,
        "terminated": closed.terminated,
        "truncated": closed.truncated,
        "first_version": pages.versions.take(starts),
        "last_version": pages.versions.take(closed.ends - 1),
        "generation": closed.generation,
        "learning": closed.learning,
        "opponent": closed.opponent,
        "numbers": np.arange(first, first + len(lengths), dtype=np.int64),
        "credits": lengths * closed.learning,
    }
    for column in pages.observations:
        trajectories[f"next_{column.name}"] = column.values.take(closed.ends, 0)
    for column in pages.actions:
        trajectories[f"previous_{column.name}"] = column.values_before.take(starts, 0)
    return trajectories


def _episode_columns(episodes: Sequence[EndedEpisodes]) -> dict[str, Array]:
    joined = EndedEpisodes(*map(_joined, zip(*episodes, strict=True)))
    return {
        "episode_agent_ids": joined.agent_ids,
        "episode_returns": joined.returns.astype(np.float32),
        "episode_lengths": joined.steps.astype(np.int32),
        "episode_learning": joined.learning,
        "episode_parameters": joined.parameters,
    }


def _joined_columns(parts: Sequence[Columns]) -> Columns:
    if len(parts) < 2:
        return parts[0] if parts else {}
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

"""Closed trajectories that wait to be emitted together, as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.queues.columns import GROUP_TRAJECTORY_COLUMNS
from headrace.queues.messages import Array, Columns, TrajectoryBatch
from headrace.stages.agent.pages import Pages
from headrace.stages.slots import Element, Numbers

# Plain tuples of arrays: making a frozen dataclass costs more than all other work on these.


class ClosedTrajectories(NamedTuple):
    """Some k trajectories that were closed together, by columns [k]; their rows are still in their pages."""

    ends: Numbers
    """The rows after the last ones."""
    agent_ids: Numbers
    episode_ids: Numbers
    generation: NDArray[np.int32]
    opponent: NDArray[np.int32]
    learning: NDArray[np.bool_]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


class EndedEpisodes(NamedTuple):
    """Some episodes that ended together, by columns."""

    agent_ids: Numbers
    returns: NDArray[np.float64]
    """Undiscounted sums of rewards."""
    steps: Numbers
    """Decisions."""
    learning: NDArray[np.bool_]
    parameters: NDArray[np.int32]
    """Generations of the environment parameters that they began under."""


_NO_IDS = np.empty(0, np.int64)
_NO_NUMBERS = np.empty(0, np.int32)
_NO_FLAGS = np.empty(0, np.bool_)
_NOTHING = ClosedTrajectories(_NO_IDS, _NO_IDS, _NO_IDS, _NO_NUMBERS, _NO_NUMBERS, _NO_FLAGS, _NO_FLAGS, _NO_FLAGS)


class Outbox:
    """Closed trajectories of one behaviour id, ended episodes and results of games, until they are emitted.

    Attributes:
        rows: rows of the trajectories that wait.
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
        """Number what is emitted from now on from 0, for another source."""
        self._emitted = 0

    def add(self, closed: ClosedTrajectories, rows: int, of_groups: Columns | None = None) -> None:
        """Add trajectories with this many rows in all; `of_groups` are `GROUP_TRAJECTORY_COLUMNS`."""
        self._closed.append(closed)
        self.rows += rows
        if of_groups is not None:
            self._trajectory_groups.append(of_groups)

    def add_episodes(self, episodes: EndedEpisodes, of_groups: Columns | None = None) -> None:
        """Add episodes that ended with trajectories that wait; `of_groups` are `GROUP_EPISODE_COLUMNS`."""
        self._episodes.append(episodes)
        if of_groups is not None:
            self._episode_groups.append(of_groups)

    def add_games(self, games: Columns) -> None:
        """Add results of games, to be emitted with the next batch."""
        self._games.append({name: column.copy() for name, column in games.items()})

    def emit(self, pages: Pages, behavior_id: str, source: int) -> TrajectoryBatch | None:
        """Return all that waits as one batch and free its pages; None if nothing waits.

        Games that wait without a trajectory make a batch without rows.
        """
        if not self._closed and not self._games:
            return None
        closed = ClosedTrajectories(*map(_joined, zip(*(self._closed or [_NOTHING]), strict=True)))
        if pages.of_groups and not self._closed:
            self._trajectory_groups = [{c.name: np.empty(0, c.dtype) for c in GROUP_TRAJECTORY_COLUMNS}]
        lengths = pages.lengths(closed.ends)
        starts = closed.ends - lengths
        batch = TrajectoryBatch(
            behavior_id,
            source,
            _row_columns(pages, closed.ends, lengths, self.rows),
            {
                **_trajectory_columns(pages, starts, lengths, closed, self._emitted),
                **_joined_columns(self._trajectory_groups),
            },
            {**_episode_columns(self._episodes), **_joined_columns(self._episode_groups)},
            _joined_columns(self._games),
        )
        pages.release(starts)
        self._emitted += len(lengths)
        self._closed, self._episodes, self._games, self.rows = [], [], [], 0
        self._trajectory_groups, self._episode_groups = [], []
        return batch


def _joined(parts: Sequence[NDArray[Element]]) -> NDArray[Element]:
    """Arrays [k] of one dtype, each contiguous, one after another."""
    if len(parts) == 1:
        return parts[0]
    # They are many and small: `concatenate` takes twice as long. A bytearray, so that the array may be written to.
    return np.frombuffer(bytearray().join(parts), parts[0].dtype)  # type: ignore[arg-type]  # an array is a buffer


def _row_columns(pages: Pages, ends: Numbers, lengths: Numbers, total: int) -> Columns:
    """Row columns [total, …]: of page after page the `lengths` [k] rows up to `ends` [k]."""
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
) -> Columns:
    """Columns [k]: `columns.TRAJECTORY_COLUMNS` (numbers from `first` on), next observations, previous actions."""
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
        "numbers": np.arange(first, first + len(lengths)),
        "credits": lengths * closed.learning,
    }
    for column in pages.observations:
        trajectories[f"next_{column.name}"] = column.values.take(closed.ends, 0)
    for column in pages.actions:
        trajectories[f"previous_{column.name}"] = column.values_before.take(starts, 0)
    return trajectories


def _episode_columns(episodes: Sequence[EndedEpisodes]) -> Columns:
    if not episodes:
        return {}
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

"""Trajectories that are closed and wait to be emitted together, and how they become one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from queues.messages import Array, Columns, TrajectoryBatch
from stages.agent.pages import Pages
from stages.agent.slots import Element, Numbers

AGENT, EPISODE, GENERATION, OPPONENT, LEARNING = range(5)
"""Columns of stamps [n, 5]: agent id, episode id, and under which self-play assignment the agent plays."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known of k episodes that ended."""

    terminated: NDArray[np.bool_]
    """[k] by the task's own rules; else they were truncated."""
    returns: NDArray[np.float64]
    """[k] undiscounted sums of rewards."""
    steps: Numbers
    """[k] decisions."""


@dataclass(frozen=True, slots=True)
class Closed:
    """Some k trajectories that were closed together and for the same reason; their rows are still in their pages."""

    ends: Numbers
    """[k] the rows after the last ones."""
    stamps: Numbers
    """[k, 5]"""
    truncated: bool = False
    """Whether the episodes were left without an ending. Endings say for themselves."""
    ending: Ending | None = None
    """None if the episodes go on."""


class Outbox:
    """Closed trajectories of one behaviour id, and results of games, until they are emitted.

    Attributes:
        rows: rows of the trajectories that wait.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._closed: list[Closed] = []
        self._games: list[Columns] = []

    def add(self, closed: Closed, rows: int) -> None:
        """Take trajectories in that have so many rows in all."""
        self._closed.append(closed)
        self.rows += rows

    def add_games(self, games: Columns) -> None:
        """Take results of games, to go with the next batch."""
        self._games.append({name: column.copy() for name, column in games.items()})

    def emit(self, pages: Pages, behavior_id: str, source: int) -> TrajectoryBatch | None:
        """All that waits as one batch, its pages freed; None if nothing waits.

        Games that wait without a trajectory make a batch without rows.
        """
        closed = self._closed
        if not closed and not self._games:
            return None
        ends = _joined([part.ends for part in closed], np.empty(0, np.int64))
        stamps = _joined([part.stamps for part in closed], np.empty((0, 5), np.int64))
        lengths = pages.lengths(ends)
        starts = ends - lengths
        rows = _rows(pages, ends, lengths, self.rows)
        trajectories = _trajectories(pages, starts, ends, lengths, stamps)
        trajectories["terminated"], trajectories["truncated"] = _flags(closed, len(ends))
        batch = TrajectoryBatch(behavior_id, source, rows, trajectories, _episodes(closed), self._games_joined())
        pages.give(starts)
        self._closed, self._games, self.rows = [], [], 0
        return batch

    def _games_joined(self) -> Columns:
        games = self._games
        if len(games) < 2:
            return games[0] if games else {}
        return {name: np.concatenate([part[name] for part in games]) for name in games[0]}


def _joined(parts: Sequence[NDArray[Element]], empty: NDArray[Element]) -> NDArray[Element]:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else empty


def _rows(pages: Pages, ends: Numbers, lengths: Numbers, total: int) -> dict[str, Array]:
    """The row columns: pages `lengths` [k] rows up to `ends` [k], one after the other, `total` rows."""
    at = (ends - lengths.cumsum()).repeat(lengths)
    at += np.arange(total)
    rows = {column.name: column.values.take(at, 0) for column in pages.observations}
    for column in pages.decisions:
        rows[column.name] = column.values.take(at, 0)
    rows["rewards"] = pages.rewards.take(at)
    return rows


def _trajectories(
    pages: Pages, starts: Numbers, ends: Numbers, lengths: Numbers, stamps: Numbers
) -> dict[str, Array]:
    """The trajectory columns but for `terminated` and `truncated`."""
    learning = stamps[:, LEARNING].astype(np.bool_)
    rows = lengths.astype(np.int32)
    trajectories: dict[str, Array] = {
        "lengths": rows,
        "agent_ids": stamps[:, AGENT].copy(),
        "episode_ids": stamps[:, EPISODE].copy(),
        "first_version": pages.versions.take(starts),
        "last_version": pages.versions.take(ends - 1),
        "generation": stamps[:, GENERATION].astype(np.int32),
        "learning": learning,
        "opponent": stamps[:, OPPONENT].astype(np.int32),
        "credits": rows * learning,
    }
    for column in pages.observations:
        trajectories[f"next_{column.name}"] = column.values.take(ends, 0)
    for column in pages.actions:
        trajectories[f"previous_{column.name}"] = column.values_before.take(starts, 0)
    return trajectories


def _flags(closed: Sequence[Closed], count: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """The columns `terminated` and `truncated`."""
    terminated, truncated = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    at = 0
    for part in closed:
        first, at = at, at + len(part.ends)
        if part.ending is not None:
            terminated[first:at] = part.ending.terminated
            np.logical_not(part.ending.terminated, out=truncated[first:at])
        elif part.truncated:
            truncated[first:at] = True
    return terminated, truncated


def _episodes(closed: Sequence[Closed]) -> Columns:
    """The episode columns, none if no episode ended."""
    endings = [(part.ending, part.stamps) for part in closed if part.ending is not None]
    if not endings:
        return {}
    stamps = np.concatenate([stamps for _, stamps in endings])
    return {
        "episode_agent_ids": stamps[:, AGENT].copy(),
        "episode_returns": np.concatenate([ending.returns for ending, _ in endings]).astype(np.float32),
        "episode_lengths": np.concatenate([ending.steps for ending, _ in endings]).astype(np.int32),
        "episode_learning": stamps[:, LEARNING].astype(np.bool_),
    }

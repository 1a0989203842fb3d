"""Converts games' messages to rows: merges messages into one tick, routes actions, and numbers episodes.

Games report agents and endings, but do not count episodes, so `EpisodeTracker` counts them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Array
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.protocol import AgentSteps
from headrace.stages.slots import NOBODY, Numbers, Slots, enlarged

ID_RANGE = 2**32
"""Offset between games' agent and group ids. It is needed because games' own ids are int32, and unique only within a
game."""


@dataclass(frozen=True, slots=True)
class GameRows:
    """The rows of one behaviour in one message: n rows, of which the first `ended` are endings, in the game's order.

    The other d = n - ended rows need a decision. An agent whose episode ended and restarted within a step has a row of
    each kind.
    """

    ids: NDArray[np.int32]
    """[n] id of each row's agent, as the game numbers it."""
    rewards: NDArray[np.float32]
    """[n] reward since the agent's previous decision."""
    ended: int
    interrupted: NDArray[np.bool_]
    """[ended] true if the episode was truncated (by its step limit), not terminated by the task."""
    observations: tuple[Array, ...]
    """One array [n, *shape] for each observation spec, in the spec's dtype."""
    action_masks: NDArray[np.bool_] | None
    """[d, sum of branches] true = allowed; None without discrete actions."""
    group_ids: NDArray[np.int32]
    """[n] id of each row's group, or 0 if there is no group."""
    group_rewards: NDArray[np.float32]
    """[n] the group's reward since the agent's previous decision."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class TrackedRows:
    """The rows of one behaviour in one message of one game, with the agents' episodes."""

    columns: GameRows
    episodes: TrackedEpisodes


IndexedRows = tuple[int, TrackedRows]
"""A game's number in the group, and its rows."""


def agent_steps(parts: Sequence[IndexedRows], spec: BehaviorSpec) -> AgentSteps:
    """Merge one behaviour's rows from several games: all endings, then all decisions, in the games' order.

    Args:
        parts: the rows of at least one game, each game once.
        spec: the behaviour's spec.
    """
    ends = [rows.columns.ended for _, rows in parts]

    def joined(columns: Iterable[Array]) -> Array:
        return _joined(list(columns), ends)

    env_ids = _env_ids(parts)
    first = joined(rows.episodes.first for _, rows in parts)
    interrupted = np.concatenate([rows.columns.interrupted for _, rows in parts])
    group_ids = group_rewards = None
    if spec.grouped:
        ids = joined(rows.columns.group_ids for _, rows in parts)
        group_ids = np.where(ids, _unique(ids, env_ids), 0)
        group_rewards = _zero_where(first, joined(rows.columns.group_rewards for _, rows in parts))
    return AgentSteps(
        agent_ids=_unique(joined(rows.columns.ids for _, rows in parts), env_ids),
        env_ids=env_ids,
        episode_ids=joined(rows.episodes.episode_ids for _, rows in parts),
        observations=tuple(
            joined(rows.columns.observations[index] for _, rows in parts) for index in range(len(spec.observations))
        ),
        rewards=_zero_where(first, joined(rows.columns.rewards for _, rows in parts)),
        ended=sum(ends),
        terminated=~interrupted,
        truncated=interrupted,
        action_masks=_masks(parts, spec),
        group_ids=group_ids,
        group_rewards=group_rewards,
        parameters=np.concatenate([rows.episodes.generations for _, rows in parts]),
    )


def decision_rows(parts: Mapping[str, Sequence[IndexedRows]]) -> dict[int, dict[str, slice]]:
    """Return the slices of each game's decisions within the tick's, keyed by the game's number and behaviour id."""
    slices: dict[int, dict[str, slice]] = {}
    for behavior_id, of_behavior in parts.items():
        at = 0
        for env_id, rows in of_behavior:
            count = len(rows.columns) - rows.columns.ended
            if count:
                slices.setdefault(env_id, {})[behavior_id] = slice(at, at + count)
                at += count
    return slices


def _joined(columns: list[Array], ends: list[int]) -> Array:
    """Join a column of several games: first all endings, then all decisions.

    `ends` holds each game's number of endings.
    """
    if len(columns) == 1:
        return columns[0]
    if not any(ends):
        return np.concatenate(columns)
    pairs = list(zip(columns, ends, strict=True))
    return np.concatenate([column[:end] for column, end in pairs] + [column[end:] for column, end in pairs])


def _env_ids(parts: Sequence[IndexedRows]) -> NDArray[np.int32]:
    """Return the number of each row's game [n]."""
    numbers = np.array([env_id for env_id, _ in parts], np.int32)
    ends = np.array([rows.columns.ended for _, rows in parts])
    totals = np.array([len(rows.columns) for _, rows in parts])
    return np.concatenate((numbers.repeat(ends), numbers.repeat(totals - ends)))


def _unique(ids: Array, env_ids: NDArray[np.int32]) -> NDArray[np.int64]:
    """Make ids unique across games; negative ids count from the end of the game's range."""
    unique: NDArray[np.int64] = ids.view(np.uint32) + env_ids * np.int64(ID_RANGE)
    return unique


def _zero_where(first: NDArray[np.bool_], rewards: Any) -> NDArray[np.float32]:
    return np.where(first, np.float32(0), rewards) if first.any() else rewards


def _masks(parts: Sequence[IndexedRows], spec: BehaviorSpec) -> NDArray[np.bool_] | None:
    if not spec.actions.masked:
        return None
    masks = [rows.columns.action_masks for _, rows in parts]
    return np.concatenate([mask for mask in masks if mask is not None])


@dataclass(frozen=True, slots=True)
class TrackedEpisodes:
    """The episodes of a message's rows: n rows, of which the first `ended` are endings."""

    episode_ids: Numbers
    """[n] id of each row's episode."""
    first: NDArray[np.bool_]
    """[n] true in the first row of an episode."""
    generations: NDArray[np.int32]
    """[ended] generation of the environment parameters at the ended episodes' starts."""


class EpisodeTracker:
    """The running episodes of one behaviour's agents in one game.

    Episodes are numbered in the order of their starts, over all agents. So an agent's episode numbers increase even if
    it gets a new id with each episode (as in older Unity packages), and agents whose episodes have ended need no state.
    """

    def __init__(self) -> None:
        self._next_number = 0
        self._slots = Slots(16)
        self._numbers = np.zeros(self._slots.total, np.int64)
        self._generations = np.zeros(self._slots.total, np.int32)
        self._last = b""
        self._again = TrackedEpisodes(np.empty(0, np.int64), np.empty(0, np.bool_), np.empty(0, np.int32))

    def track(self, agent_ids: Numbers, ended: int, generation: int) -> TrackedEpisodes:
        """Number the rows of a message: endings end episodes, and deciding agents without an episode begin one.

        Args:
            agent_ids: [n] the rows' agents, distinct among the endings and among the decisions.
            ended: the number of rows that are endings.
            generation: the generation of the current environment parameters.
        """
        key = b"" if ended else agent_ids.tobytes()
        if key and key == self._last:
            return self._again  # the usual message: the same agents as before, no ending
        episode_ids = np.empty(len(agent_ids), np.int64)
        first = np.zeros(len(agent_ids), np.bool_)
        ending = self._slots.find(agent_ids[:ended])
        has_episode = ending != NOBODY
        episode_ids[:ended] = self._numbers[ending]
        generations = self._generations[ending]
        episode_ids[:ended][~has_episode] = self._number(ended - int(np.count_nonzero(has_episode)))
        generations[~has_episode] = generation
        first[:ended] = ~has_episode
        if has_episode.any():
            self._slots.remove(ending[has_episode])
        deciding = self._slots.find(agent_ids[ended:])
        fresh = deciding == NOBODY
        if fresh.any():
            deciding[fresh] = self._begin(agent_ids[ended:][fresh], generation)
        episode_ids[ended:] = self._numbers[deciding]
        first[ended:] = fresh
        self._last = agent_ids[ended:].tobytes()
        self._again = TrackedEpisodes(episode_ids[ended:], np.zeros(len(deciding), np.bool_), np.empty(0, np.int32))
        return TrackedEpisodes(episode_ids, first, generations)

    def clear(self) -> None:
        """Forget all running episodes, so every agent begins a new one."""
        used = self._slots.used()
        if len(used):
            self._slots.remove(used)
        self._last = b""

    def _number(self, count: int) -> Numbers:
        first, self._next_number = self._next_number, self._next_number + count
        return np.arange(first, first + count)

    def _begin(self, agent_ids: Numbers, generation: int) -> Numbers:
        slots = self._slots.add(agent_ids)
        if self._slots.total > len(self._numbers):
            self._numbers = enlarged(self._numbers, self._slots.total)
            self._generations = enlarged(self._generations, self._slots.total)
        self._numbers[slots] = self._number(len(agent_ids))
        self._generations[slots] = generation
        return slots


class GameEpisodes:
    """The running episodes of all behaviours in one game."""

    def __init__(self) -> None:
        self._trackers: defaultdict[str, EpisodeTracker] = defaultdict(EpisodeTracker)

    def of(self, behavior_id: str, columns: GameRows, generation: int) -> TrackedRows:
        """Add episodes to a behaviour's rows in a message. `generation` is that of the current parameters."""
        episodes = self._trackers[behavior_id].track(columns.ids.astype(np.int64), columns.ended, generation)
        return TrackedRows(columns, episodes)

    def clear(self) -> None:
        """Forget all running episodes."""
        for tracker in self._trackers.values():
            tracker.clear()

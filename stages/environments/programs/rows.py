"""The rows of one message of a program, those of several programs as one tick, and which actions go to which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Array
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.programs.episodes import TrackedEpisodes
from headrace.stages.environments.protocol import AgentSteps

ID_RANGE = 2**32
"""Agents and groups of instance i have ids from i × this on: programs' own ids are int32, and unique in one program."""


@dataclass(frozen=True, slots=True)
class ProgramRows:
    """The rows of one behaviour in one message: n rows, of which the first `ended` are endings, in the program's order.

    The other d = n - ended ask for a decision. An agent that ended and restarted within a step has a row of each kind.
    """

    ids: NDArray[np.int32]
    """[n] the program's own agent ids."""
    rewards: NDArray[np.float32]
    """[n] since the agent's previous decision."""
    ended: int
    interrupted: NDArray[np.bool_]
    """[ended] true if the episode was truncated (by its step limit), not terminated by the task."""
    observations: tuple[Array, ...]
    """[n, *shape] per observation spec, in its dtype."""
    action_masks: NDArray[np.bool_] | None
    """[d, sum of branches] true = allowed; None without discrete actions."""
    group_ids: NDArray[np.int32]
    """[n] 0 for none."""
    group_rewards: NDArray[np.float32]
    """[n] the group's reward since the agent's previous decision."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class InstanceRows:
    """The rows of one behaviour in one message of one program, with the agents' episodes."""

    columns: ProgramRows
    episodes: TrackedEpisodes


IndexedRows = tuple[int, InstanceRows]
"""(instance, its rows)"""


def agent_steps(parts: Sequence[IndexedRows], spec: BehaviorSpec) -> AgentSteps:
    """The rows of one behaviour in several instances: first all endings, then all decisions, instance by instance.

    Args:
        parts: at least one, no instance twice.
        spec: of the behaviour.
    """
    ends = [rows.columns.ended for _, rows in parts]

    def joined(columns: Iterable[Array]) -> Array:
        return _joined(list(columns), ends)

    env_ids = _instances(parts)
    first = joined(rows.episodes.first for _, rows in parts)
    interrupted = np.concatenate([rows.columns.interrupted for _, rows in parts])
    group_ids = group_rewards = None
    if spec.grouped:
        own = joined(rows.columns.group_ids for _, rows in parts)
        group_ids = np.where(own, _unique(own, env_ids), 0)
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
    """The slice of each instance's decisions among those of a tick, by instance and behaviour id."""
    found: dict[int, dict[str, slice]] = {}
    for behavior_id, of_behavior in parts.items():
        at = 0
        for env_id, rows in of_behavior:
            count = len(rows.columns) - rows.columns.ended
            if count:
                found.setdefault(env_id, {})[behavior_id] = slice(at, at + count)
                at += count
    return found


def _joined(columns: list[Array], ends: list[int]) -> Array:
    """Join a column of several instances: first the endings, `ends` of each, then the rest."""
    if len(columns) == 1:
        return columns[0]
    if not any(ends):
        return np.concatenate(columns)
    pairs = list(zip(columns, ends, strict=True))
    return np.concatenate([column[:end] for column, end in pairs] + [column[end:] for column, end in pairs])


def _instances(parts: Sequence[IndexedRows]) -> NDArray[np.int32]:
    """[n] instance of each row."""
    numbers = np.array([env_id for env_id, _ in parts], np.int32)
    ends = np.array([rows.columns.ended for _, rows in parts])
    totals = np.array([len(rows.columns) for _, rows in parts])
    return np.concatenate((numbers.repeat(ends), numbers.repeat(totals - ends)))


def _unique(ids: Array, env_ids: NDArray[np.int32]) -> NDArray[np.int64]:
    """Ids that are unique among instances; negative ones count from the end of the instance's range."""
    unique: NDArray[np.int64] = ids.view(np.uint32) + env_ids * np.int64(ID_RANGE)
    return unique


def _zero_where(first: NDArray[np.bool_], rewards: Any) -> NDArray[np.float32]:
    return np.where(first, np.float32(0), rewards) if first.any() else rewards


def _masks(parts: Sequence[IndexedRows], spec: BehaviorSpec) -> NDArray[np.bool_] | None:
    if not spec.actions.masked:
        return None
    masks = [rows.columns.action_masks for _, rows in parts]
    return np.concatenate([mask for mask in masks if mask is not None])

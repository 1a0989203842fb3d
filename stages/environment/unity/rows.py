"""The rows of several Unity programs' messages as one tick, and which actions answer which message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queues.messages import Array
from queues.specs import BehaviorSpec
from stages.environment.protocol import AgentSteps
from stages.environment.unity.episodes import Entered
from stages.unity.columns import UnityRows

ID_RANGE = 2**32
"""Agents and groups of instance i have ids from i × this on: Unity's are int32, and each Unity has its own."""


@dataclass(frozen=True, slots=True)
class AgentRows:
    """What one message of one Unity says of one behaviour, with the agents' episodes."""

    said: UnityRows
    episodes: Entered


Part = tuple[int, AgentRows]
"""The instance, and what it says."""


def agent_steps(parts: Sequence[Part], spec: BehaviorSpec) -> AgentSteps:
    """The rows of one behaviour in several instances: first all endings, then all who decide, instance by instance.

    Args:
        parts: at least one, no instance twice.
        spec: of the behaviour.
    """
    ends = [rows.said.ended for _, rows in parts]

    def joined(columns: Iterable[Array]) -> Array:
        return _joined(list(columns), ends)

    env_ids = _instances(parts)
    first = joined(rows.episodes.first for _, rows in parts)
    interrupted = np.concatenate([rows.said.interrupted for _, rows in parts])
    group_ids = joined(rows.said.group_ids for _, rows in parts)
    return AgentSteps(
        agent_ids=_unique(joined(rows.said.ids for _, rows in parts), env_ids),
        env_ids=env_ids,
        episode_ids=joined(rows.episodes.episode_ids for _, rows in parts),
        observations=tuple(
            joined(rows.said.observations[index] for _, rows in parts) for index in range(len(spec.observations))
        ),
        rewards=_zero_where(first, joined(rows.said.rewards for _, rows in parts)),
        ended=sum(ends),
        terminated=~interrupted,
        truncated=interrupted,
        action_masks=_masks(parts, spec),
        group_ids=np.where(group_ids, _unique(group_ids, env_ids), 0),
        group_rewards=_zero_where(first, joined(rows.said.group_rewards for _, rows in parts)),
        parameters=np.concatenate([rows.episodes.generations for _, rows in parts]),
    )


def decision_rows(parts: Mapping[str, Sequence[Part]]) -> dict[int, dict[str, slice]]:
    """Where each instance's decisions stand among those of a tick, by instance and behaviour id."""
    found: dict[int, dict[str, slice]] = {}
    for behavior_id, of_behavior in parts.items():
        at = 0
        for env_id, rows in of_behavior:
            count = len(rows.said) - rows.said.ended
            if count:
                found.setdefault(env_id, {})[behavior_id] = slice(at, at + count)
                at += count
    return found


def _joined(columns: list[Array], ends: list[int]) -> Array:
    """One column of several instances' [n]: first their endings, as many as `ends` says, then the rest."""
    if len(columns) == 1:
        return columns[0]
    if not any(ends):
        return np.concatenate(columns)
    pairs = list(zip(columns, ends, strict=True))
    return np.concatenate([column[:end] for column, end in pairs] + [column[end:] for column, end in pairs])


def _instances(parts: Sequence[Part]) -> NDArray[np.int32]:
    """[n] instance of each row."""
    numbers = np.array([env_id for env_id, _ in parts], np.int32)
    ends = np.array([rows.said.ended for _, rows in parts])
    totals = np.array([len(rows.said) for _, rows in parts])
    return np.concatenate((numbers.repeat(ends), numbers.repeat(totals - ends)))


def _unique(ids: Array, env_ids: NDArray[np.int32]) -> NDArray[np.int64]:
    """Ids that no other instance has; negative ones count from the far end of the instance's range."""
    unique: NDArray[np.int64] = ids.view(np.uint32) + env_ids * np.int64(ID_RANGE)
    return unique


def _zero_where(first: NDArray[np.bool_], rewards: Any) -> NDArray[np.float32]:
    return np.where(first, np.float32(0), rewards) if first.any() else rewards


def _masks(parts: Sequence[Part], spec: BehaviorSpec) -> NDArray[np.bool_] | None:
    if not spec.actions.masked:
        return None
    masks = [rows.said.action_masks for _, rows in parts]
    return np.concatenate([mask for mask in masks if mask is not None])

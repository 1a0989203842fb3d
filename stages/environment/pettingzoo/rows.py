"""Gathers what single agents saw, agent by agent, and makes columns of it: one AgentSteps per behaviour id."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stages.environment.pettingzoo.instances import Sight
from stages.environment.pettingzoo.kinds import Kind
from stages.environment.protocol import AgentSteps
from stages.errors import NotFiniteError


@dataclass(slots=True)
class Playing:
    """An agent in its episode."""

    behavior_id: str
    team: int
    agent_id: int
    episode_id: int
    group_id: int = 0
    decided: bool = False
    """Whether it has made a decision: only then is there something that its next row can complete."""
    of_mates: float = 0.0
    """What its mates had earned at its last row, in a game by turns."""


@dataclass(slots=True)
class _Rows:
    sights: list[Sight] = field(default_factory=list)
    agents: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Agent id, instance, episode id and group id of each."""
    rewards: list[float] = field(default_factory=list)
    group_rewards: list[float] = field(default_factory=list)


@dataclass(slots=True)
class RowsOfBehavior:
    """The rows of one behaviour id at one tick, endings and decisions apart."""

    ending: _Rows = field(default_factory=_Rows)
    deciding: _Rows = field(default_factory=_Rows)
    actors: list[tuple[int, str]] = field(default_factory=list)
    """Instance and name of the agents that decide."""

    def add(self, env_id: int, playing: Playing, sight: Sight, group_reward: float) -> None:
        """Add what an agent saw, and what its mates were rewarded with since its last row."""
        rows = self.ending if sight.ended else self.deciding
        rows.sights.append(sight)
        rows.agents.append((playing.agent_id, env_id, playing.episode_id, playing.group_id))
        rows.rewards.append(sight.reward if playing.decided else 0.0)
        rows.group_rewards.append(group_reward if playing.decided else 0.0)
        if not sight.ended:
            self.actors.append((env_id, sight.agent))

    def columns(self, kind: Kind, grouped: bool) -> AgentSteps:
        """Everything that was added, as columns.

        Args:
            kind: how the behaviour's observations become columns.
            grouped: whether its agents belong to groups.

        Raises:
            NotFiniteError: if a reward is NaN or infinite, naming the agent: it would make results of games too.
            BrokenEnvironmentError: if an observation or mask does not fit its space.
        """
        ending, deciding = self.ending, self.deciding
        sights = ending.sights + deciding.sights
        agents = np.array(ending.agents + deciding.agents, np.int64)
        return AgentSteps(
            agent_ids=agents[:, 0].copy(),
            env_ids=agents[:, 1].astype(np.int32),
            episode_ids=agents[:, 2].copy(),
            observations=kind.observations([sight.observation for sight in sights]),
            rewards=_finite(ending.rewards + deciding.rewards, "its reward", sights, agents, kind),
            ended=len(ending.sights),
            terminated=np.array([sight.terminated for sight in ending.sights], np.bool_),
            truncated=np.array([sight.truncated for sight in ending.sights], np.bool_),
            action_masks=kind.masks([(sight.observation, sight.info) for sight in deciding.sights]),
            group_ids=agents[:, 3].copy() if grouped else None,
            group_rewards=_finite(
                ending.group_rewards + deciding.group_rewards, "what its mates received", sights, agents, kind
            )
            if grouped
            else None,
        )


def _finite(
    received: list[float], what: str, sights: list[Sight], agents: NDArray[np.int64], kind: Kind
) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # found and named below
        rewards = np.array(received, np.float32)
    finite = np.isfinite(rewards)
    if not finite.all():
        row = int(np.argmin(finite))
        raise NotFiniteError(
            f"{kind.owner}: agent '{sights[row].agent}' of {kind.behavior} in instance {agents[row, 1]}: {what} is "
            f"{received[row]:.6g}, expected a finite number; look for a division by zero where rewards are reckoned"
        )
    return rewards

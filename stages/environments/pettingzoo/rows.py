"""The rows of one tick, collected agent by agent, and made into columns: one AgentSteps per behaviour id."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.stages.environments.pettingzoo.behavior_spaces import BehaviorSpaces
from headrace.stages.environments.pettingzoo.instances import TimeStep
from headrace.stages.environments.protocol import AgentSteps
from headrace.stages.errors import NotFiniteError


@dataclass(slots=True)
class AgentEpisode:
    """The running episode of an agent."""

    behavior_id: str
    team: int
    agent_id: int
    episode_id: int
    group_id: int = 0
    decided: bool = False
    """True once it has made a decision, which its next row completes."""
    mates_rewards: float = 0.0
    """The sum of its mates' rewards at its last row, in a turn-based environment."""


@dataclass(slots=True)
class _Rows:
    time_steps: list[TimeStep] = field(default_factory=list)
    agents: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(agent id, instance, episode id, group id)"""
    rewards: list[float] = field(default_factory=list)
    group_rewards: list[float] = field(default_factory=list)


@dataclass(slots=True)
class BehaviorRows:
    """The rows of one behaviour id in one tick, endings and decisions apart."""

    ending: _Rows = field(default_factory=_Rows)
    deciding: _Rows = field(default_factory=_Rows)
    actors: list[tuple[int, str]] = field(default_factory=list)
    """(instance, agent name) of those that decide."""

    def add(self, env_id: int, episode: AgentEpisode, time_step: TimeStep, group_reward: float) -> None:
        """Add an agent's time step, and the rewards of its mates since its last row."""
        rows = self.ending if time_step.ended else self.deciding
        rows.time_steps.append(time_step)
        rows.agents.append((episode.agent_id, env_id, episode.episode_id, episode.group_id))
        rows.rewards.append(time_step.reward if episode.decided else 0.0)
        rows.group_rewards.append(group_reward if episode.decided else 0.0)
        if not time_step.ended:
            self.actors.append((env_id, time_step.agent))

    def columns(self, spaces: BehaviorSpaces, grouped: bool) -> AgentSteps:
        """All rows, as columns.

        Args:
            spaces: of the behaviour.
            grouped: True if its agents belong to groups.

        Raises:
            NotFiniteError: if a reward is NaN or infinite; the message names the agent.
            BrokenEnvironmentError: if an observation or mask does not fit its space.
        """
        ending, deciding = self.ending, self.deciding
        time_steps = ending.time_steps + deciding.time_steps
        agents = np.array(ending.agents + deciding.agents, np.int64)
        return AgentSteps(
            agent_ids=agents[:, 0].copy(),
            env_ids=agents[:, 1].astype(np.int32),
            episode_ids=agents[:, 2].copy(),
            observations=spaces.observations([time_step.observation for time_step in time_steps]),
            rewards=_finite(ending.rewards + deciding.rewards, "its reward", time_steps, agents, spaces),
            ended=len(ending.time_steps),
            terminated=np.array([time_step.terminated for time_step in ending.time_steps], np.bool_),
            truncated=np.array([time_step.truncated for time_step in ending.time_steps], np.bool_),
            action_masks=spaces.masks([(time_step.observation, time_step.info) for time_step in deciding.time_steps]),
            group_ids=agents[:, 3].copy() if grouped else None,
            group_rewards=_finite(
                ending.group_rewards + deciding.group_rewards, "its mates' reward", time_steps, agents, spaces
            )
            if grouped
            else None,
        )


def _finite(
    received: list[float], what: str, time_steps: list[TimeStep], agents: NDArray[np.int64], spaces: BehaviorSpaces
) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # found and named below
        rewards = np.array(received, np.float32)
    finite = np.isfinite(rewards)
    if not finite.all():
        row = int(np.argmin(finite))
        agent, instance = time_steps[row].agent, agents[row, 1]
        raise NotFiniteError(
            f"{spaces.owner}: agent '{agent}' of {spaces.behavior} in instance {instance}: {what} is "
            f"{received[row]:.6g}, expected a finite number; look for a division by zero where rewards are computed"
        )
    return rewards

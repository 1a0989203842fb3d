"""Converts one behaviour's observations, masks and actions between single agents' values and columns.

Spaces are Gymnasium spaces, read by `stages/environments/spaces/`. This module adds what is specific to PettingZoo:
rows arrive agent by agent, and the action mask is under the key `action_mask` in the observation or, in newer versions,
in the info.

Axis letters: k observations, d decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.config import ObservationSettings
from headrace.config.errors import suggest
from headrace.queues.messages import ActionBatch, Array
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.checks import stack
from headrace.stages.environments.pettingzoo.instance import Agent, TimeStep
from headrace.stages.environments.pettingzoo.teams import GroupRewards, TeamScores
from headrace.stages.environments.protocol import AgentSteps
from headrace.stages.environments.spaces.columns import SpaceColumns
from headrace.stages.environments.spaces.masks import MASK, Masks
from headrace.stages.environments.spaces.observations import name_of
from headrace.stages.environments.spaces.own_space import leaves, own_space
from headrace.stages.errors import BrokenEnvironmentError, NotFiniteError, StageError, Who, describe_error

Space = spaces.Space[Any]


class BehaviorSpaces:
    """The spaces of one behaviour's agents.

    Args:
        behavior: the behaviour name.
        observation_space: the observation space of each agent; `action_mask` in it is a mask, not an observation.
        action_space: the action space of each agent.
        settings: `environment.observations`; settings of other behaviours' observations are ignored.
        grouped: True if the agents belong to groups.
        owner: the environment's name, used in messages.
        exact, clips: see `SpaceColumns`.

    Attributes:
        behavior: the behaviour name.
        owner: the environment's name.

    Raises:
        StageError: if a space is not supported, or the settings do not fit it.
    """

    def __init__(
        self,
        behavior: str,
        observation_space: Space,
        action_space: Space,
        settings: Mapping[str, ObservationSettings],
        grouped: bool,
        owner: str,
        exact: bool = False,
        clips: bool = False,
    ) -> None:
        self.behavior = behavior
        self.owner = owner
        self._grouped = grouped
        self._seen_space = without_mask(observation_space)
        self._action_space = action_space
        names = set(_names(self._seen_space))
        own = {name: observation for name, observation in settings.items() if name in names}
        self._spaces = SpaceColumns(observation_space, action_space, owner, own, exact, clips)

    def expect_masks(self, info: Mapping[str, Any]) -> None:
        """Look for a mask in an agent's info. Must be called before the spec is made."""
        self._spaces.masks.expect(info)

    def spec(self, behavior_id: str) -> BehaviorSpec:
        """Return the spec for a behaviour id."""
        return self._spaces.spec(behavior_id, self._grouped)

    def observations(self, seen: Sequence[Any], who: Who) -> tuple[Array, ...]:
        """Convert k observations from the environment to one new array [k, *shape] for each observation in the spec.

        Args:
            seen: the observations.
            who: returns the name of a row's agent.

        Raises:
            BrokenEnvironmentError: if an observation does not fit its space.
        """
        batch = stack(self._seen_space, seen, "reset() or step()", who)
        try:
            return self._spaces.extract(batch, who)
        except (LookupError, TypeError, ValueError) as error:
            raise BrokenEnvironmentError(
                f"{self.owner}: an observation of {self.behavior} is not in its space {self._seen_space}: "
                f"{describe_error(error)}"
            ) from error

    def masks(self, seen: Sequence[TimeStep], who: Who) -> Masks | None:
        """Return the masks [d, choices] for d agents; None if the spec has none.

        Args:
            seen: the agents' time steps.
            who: returns the name of a row's agent.

        Raises:
            BrokenEnvironmentError: if a mask is invalid.
            StageError: if a mask appears although the spec has no masks.
        """
        observed = [each.observation.get(MASK) for each in seen] if self._spaces.mask_observed else None
        return self._spaces.masks.read(len(seen), observed, [each.info.get(MASK) for each in seen], who)

    def actions(self, batch: ActionBatch, count: int) -> list[Any]:
        """Convert d = `count` decisions to a list of single actions for the environment.

        Raises:
            StageError: if the batch has the wrong size.
        """
        if len(batch.continuous) != count or len(batch.discrete) != count:
            raise StageError(
                f"{self.owner}: got {len(batch.continuous)} continuous and {len(batch.discrete)} discrete actions for "
                f"the agents of {self.behavior} whose turn it is; expected {count} of each"
            )
        return _one_by_one(self._action_space, self._spaces.actions(count).to_environment(batch))


def without_mask(space: Space) -> Space:
    """Return an observation space without its action mask, or the same object if it has no mask."""
    if not isinstance(space, spaces.Dict) or MASK not in space.spaces:
        return space
    return spaces.Dict({key: inner for key, inner in space.spaces.items() if key != MASK})


def check_names(settings: Mapping[str, ObservationSettings], observation_spaces: Sequence[Space], owner: str) -> None:
    """Check that each observation named in `environment.observations` exists in some behaviour.

    Raises:
        StageError: if an observation does not exist.
    """
    every = list(dict.fromkeys(name for space in observation_spaces for name in _names(without_mask(space))))
    for name in settings:
        if name not in every:
            hint = suggest(name, every) or f"; available: {', '.join(every)}"
            raise StageError(f"{owner}: environment.observations: no agent has an observation '{name}'{hint}")


def _names(space: Space) -> list[str]:
    """Return the names of a space's observations, from `observation_parts`."""
    return [name_of(keys) for keys, _ in leaves(own_space(space))]


def _one_by_one(space: Space, batch: Any) -> list[Any]:
    if isinstance(space, spaces.Dict):
        columns = [_one_by_one(inner, batch[key]) for key, inner in space.spaces.items()]
        return [dict(zip(space.spaces, values, strict=True)) for values in zip(*columns, strict=True)]
    if isinstance(space, spaces.Tuple):
        columns = [_one_by_one(inner, part) for inner, part in zip(space.spaces, batch, strict=True)]
        return list(zip(*columns, strict=True))
    return list(batch)


# The rows of one tick, collected agent by agent and converted to columns: one AgentSteps per behaviour id.


@dataclass(slots=True)
class AgentEpisode:
    """An agent's running episode."""

    behavior_id: str
    team: int
    agent_id: int
    episode_id: int
    group_id: int = 0
    decided: bool = False
    """True once the agent has made a decision. The result of the decision is in the agent's next row."""
    mates_rewards: float = 0.0
    """In a turn-based environment: the sum of the other group members' rewards up to the agent's last row."""


@dataclass(slots=True)
class RunningGame:
    """An instance's running episode, which is a game between its teams."""

    score: TeamScores
    rotation: int
    """Number of positions by which teams are rotated relative to sides."""
    live: dict[Agent, AgentEpisode] = field(default_factory=dict)
    group_rewards: GroupRewards = field(default_factory=GroupRewards)


@dataclass(slots=True)
class _Rows:
    time_steps: list[TimeStep] = field(default_factory=list)
    agents: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(agent id, instance, episode id, group id) of each row."""
    rewards: list[float] = field(default_factory=list)
    group_rewards: list[float] = field(default_factory=list)


@dataclass(slots=True)
class BehaviorRows:
    """The rows of one behaviour id in one tick, with endings and decisions kept separate."""

    ending: _Rows = field(default_factory=_Rows)
    deciding: _Rows = field(default_factory=_Rows)
    actors: list[tuple[int, Agent]] = field(default_factory=list)
    """(instance, agent) for each agent that decides."""

    def add(self, env_id: int, episode: AgentEpisode, time_step: TimeStep, ended: bool, group_reward: float) -> None:
        """Add an agent's time step; `group_reward` is the other group members' reward since the agent's last row."""
        rows = self.ending if ended else self.deciding
        rows.time_steps.append(time_step)
        rows.agents.append((episode.agent_id, env_id, episode.episode_id, episode.group_id))
        rows.rewards.append(time_step.reward if episode.decided else 0.0)
        rows.group_rewards.append(group_reward if episode.decided else 0.0)
        if not ended:
            self.actors.append((env_id, time_step.agent))

    def columns(self, spaces: BehaviorSpaces, grouped: bool) -> AgentSteps:
        """Return all rows as columns.

        Args:
            spaces: the behaviour's spaces.
            grouped: True if the agents belong to groups.

        Raises:
            NotFiniteError: if a reward is NaN or infinite; the message names the agent.
            BrokenEnvironmentError: if an observation or mask does not fit its space.
        """
        ending, deciding = self.ending, self.deciding
        time_steps = ending.time_steps + deciding.time_steps
        agents = np.array(ending.agents + deciding.agents, np.int64)

        def who(row: int | None) -> str:
            if row is None:
                return f"{spaces.owner}: {spaces.behavior}"
            agent, instance = time_steps[row].agent, agents[row, 1]
            return f"{spaces.owner}: agent '{agent}' of {spaces.behavior} in instance {instance}"

        return AgentSteps(
            agent_ids=agents[:, 0].copy(),
            env_ids=agents[:, 1].astype(np.int32),
            episode_ids=agents[:, 2].copy(),
            observations=spaces.observations([time_step.observation for time_step in time_steps], who),
            rewards=_finite(ending.rewards + deciding.rewards, "its reward", who),
            ended=len(ending.time_steps),
            terminated=np.array([time_step.terminated for time_step in ending.time_steps], np.bool_),
            truncated=np.array([time_step.truncated for time_step in ending.time_steps], np.bool_),
            action_masks=spaces.masks(
                deciding.time_steps, lambda row: who(None if row is None else row + len(ending.time_steps))
            ),
            group_ids=agents[:, 3].copy() if grouped else None,
            group_rewards=_finite(ending.group_rewards + deciding.group_rewards, "its teammates' reward", who)
            if grouped
            else None,
        )


def _finite(received: list[float], what: str, who: Who) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # reported below
        rewards = np.array(received, np.float32)
    finite = np.isfinite(rewards)
    if not finite.all():
        row = int(np.argmin(finite))
        raise NotFiniteError(
            f"{who(row)}: {what} is {received[row]:.6g}; expected a finite number; look for a division by zero where "
            "rewards are computed"
        )
    return rewards

"""Time limit for episodes: `environment.max_episode_steps`, for environments of any kind.

An episode of that many steps is truncated: the trainer bootstraps from its last observation, since the task has not
ended. Single environments of Gymnasium and PettingZoo are then reset (Gymnasium's `TimeLimit`, `LimitedInstance`).
Other groups can't reset one instance, so `LimitedGroup` makes the agent's next episode begin at the truncation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.parameters import EpisodeParameters, Parameterised
from headrace.stages.environments.protocol import AgentSteps, EnvironmentGroup, StepResult, WrappedGroup, settled
from headrace.stages.slots import NOBODY, Numbers, Slots, enlarged

_CUTS = 2**20
"""Factor for the environment's episode ids; each truncation adds 1, so ids still increase."""


@runtime_checkable
class Limited(Protocol):
    """An environment group that can limit episodes itself."""

    limits_episodes: bool
    """True if the group was made with the limit and applies it itself."""


class LimitedGroup(WrappedGroup):
    """An environment group that limits the number of decisions in each agent's episode.

    Args:
        group: the environments, which this group closes.
        steps: number of an agent's decisions after which its episode is truncated, and its next episode begins.
    """

    def __init__(self, group: EnvironmentGroup, steps: int) -> None:
        super().__init__(group)
        self._limit = steps
        self._ages: dict[str, _Ages] = {}
        self._parameters = EpisodeParameters()
        if isinstance(group, Parameterised):
            self.set_parameters = self._pass_on

    @property
    def behavior_specs(self) -> Mapping[str, BehaviorSpec]:
        """The group's specs."""
        return self._group.behavior_specs

    async def reset(self, seed: int | None = None) -> StepResult:
        """Reset all instances."""
        self._ages = {}
        return self._limited(await settled(self._group.reset(seed)))

    async def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        """Advance one tick, and truncate the episodes that have reached the limit."""
        return self._limited(await settled(self._group.step(actions)))

    def _pass_on(self, parameters: EpisodeParameters) -> None:
        assert isinstance(self._group, Parameterised), "it is, or this is not called"
        self._parameters = parameters
        self._group.set_parameters(parameters)

    def _limited(self, result: StepResult) -> StepResult:
        for gone in result.gone:
            for ages in self._ages.values():
                ages.drop(gone)
        steps = {
            behavior_id: self._ages.setdefault(behavior_id, _Ages(self._limit)).add(each, self._parameters.generation)
            for behavior_id, each in result.steps.items()
        }
        return replace(result, steps=steps)


class _Ages:
    """Counts the decisions in the running episodes of one behaviour id. Slot `NOBODY` belongs to no agent."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._slots = Slots(1)
        total = self._slots.total
        self._decisions = np.zeros(total, np.int64)
        self._cuts = np.zeros(total, np.int64)
        """[slots] number of truncations so far in the environment's current episode."""
        self._episode_ids = np.zeros(total, np.int64)
        """[slots] the environment's own episode ids."""
        self._env_ids = np.zeros(total, np.int64)
        self._generations = np.zeros(total, np.int32)
        """[slots] generation of the environment parameters at the episode's start."""

    def add(self, steps: AgentSteps, generation: int) -> AgentSteps:
        """Count a tick's decisions; return its rows, with an ending before each decision beyond the limit."""
        slots = self._slots.find(steps.agent_ids)
        ending, acting = slots[: steps.ended], slots[steps.ended :]
        numbers = steps.episode_ids * _CUTS + np.where(
            self._episode_ids[slots] == steps.episode_ids, self._cuts[slots], 0
        )
        self._forget(ending[ending != NOBODY])
        acting = self._slots.find(steps.agent_ids[steps.ended :])
        if not acting.all():
            acting = self._admit(steps, acting == NOBODY)
        own = steps.episode_ids[steps.ended :]
        begins = (self._decisions[acting] == 0) | (self._episode_ids[acting] != own)
        self._episode_ids[acting] = own
        self._decisions[acting[begins]] = self._cuts[acting[begins]] = 0
        self._generations[acting[begins]] = generation
        self._decisions[acting] += 1
        over = self._decisions[acting] > self._limit
        if not over.any():
            return replace(steps, episode_ids=numbers)
        cut = acting[over]
        begun = self._generations[cut]
        self._cuts[cut] += 1
        self._decisions[cut], self._generations[cut] = 1, generation
        after = numbers.copy()
        after[steps.ended :][over] += 1
        return _cut(steps, numbers, after, over, begun)

    def drop(self, env_ids: NDArray[np.int32]) -> None:
        """Forget the agents of the given instances."""
        used = self._slots.used()
        self._forget(used[np.isin(self._env_ids[used], env_ids)])

    def _admit(self, steps: AgentSteps, new: NDArray[np.bool_]) -> Numbers:
        """Give slots to agents that decide for the first time; return the slots of all agents that decide."""
        added = self._slots.add(steps.agent_ids[steps.ended :][new])
        if self._slots.total > len(self._decisions):
            for name, values in vars(self).items():
                if isinstance(values, np.ndarray):
                    setattr(self, name, enlarged(values, self._slots.total))
        self._decisions[added] = 0
        self._env_ids[added] = steps.env_ids[steps.ended :][new]
        return self._slots.find(steps.agent_ids[steps.ended :])

    def _forget(self, slots: Numbers) -> None:
        if len(slots):
            self._slots.remove(slots)


def _cut(
    steps: AgentSteps, before: Numbers, after: Numbers, over: NDArray[np.bool_], begun: NDArray[np.int32]
) -> AgentSteps:
    """Insert a truncated ending before each decision that `over` [d] marks as the first one beyond the limit."""
    ended, cut = steps.ended, steps.ended + over.nonzero()[0]
    rows = np.concatenate((np.arange(ended), cut, np.arange(ended, len(before))))
    fresh = np.concatenate((np.zeros(ended + len(cut), np.bool_), over))
    """[n] true in the first rows of the new episodes, which have no reward yet."""

    def received(values: NDArray[Any] | None) -> Any:
        if values is None:
            return None
        found = values[rows]
        found[fresh] = 0
        return found

    none, all_of_them = np.zeros(len(cut), np.bool_), np.ones(len(cut), np.bool_)
    parameters = steps.parameters
    if parameters is not None:
        parameters = np.concatenate((parameters, begun))
    return replace(
        steps,
        agent_ids=steps.agent_ids[rows],
        env_ids=steps.env_ids[rows],
        episode_ids=np.concatenate((before[:ended], before[cut], after[ended:])),
        observations=tuple(observation[rows] for observation in steps.observations),
        rewards=received(steps.rewards),
        ended=ended + len(cut),
        terminated=np.concatenate((steps.terminated, none)),
        truncated=np.concatenate((steps.truncated, all_of_them)),
        group_ids=None if steps.group_ids is None else steps.group_ids[rows],
        group_rewards=received(steps.group_rewards),
        parameters=parameters,
        env_frames=received(steps.env_frames),
        undiscounted=received(steps.undiscounted),
    )

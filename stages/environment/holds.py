"""The held actions of one behaviour id's agents, and what these bring, in columns: no Python per agent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from config import ActionRepeatSettings
from queues.messages import ActionBatch, Floats
from queues.specs import ActionSpec
from stages.environment.protocol import AgentSteps
from stages.slots import NOBODY, Numbers, Slots, enlarged


class Holds:
    """Holds the actions of agents, each for its own number of environment steps.

    The sums of rewards are those since the agent's last decision: of its own and its group's rewards, each as it is
    learned from (discounted) and as it is. Slot `NOBODY` stands for agents that never decided; its sums stay 0.

    Args:
        actions: of the environment, without `step_mul`.
        settings: for how many steps.
    """

    def __init__(self, actions: ActionSpec, settings: ActionRepeatSettings) -> None:
        self._steps, self._choices = settings.steps, settings.max
        self._discount = np.float64(settings.discount)
        self._firsts = np.cumsum([0, *actions.discrete_branches])[:-1]
        self._slots = Slots(1)
        total = self._slots.total
        self._continuous = np.zeros((total, actions.continuous_size), np.float32)
        self._discrete = np.zeros((total, len(actions.discrete_branches)), np.int32)
        self._left = np.zeros(total, np.int64)
        self._frames = np.zeros(total, np.int32)
        self._weights = np.ones(total)
        self._sums = np.zeros((total, 2, 2))
        """[total, own and group's reward, discounted and not]"""
        self._episode_ids = np.zeros(total, np.int64)
        self._env_ids = np.zeros(total, np.int64)
        self._acting = self._deciding = np.empty(0, np.int64)
        """Slots of those that the environment asked last, and of those of them that decide anew."""

    def begin(self, decided: ActionBatch) -> None:
        """Begin to hold new actions, of the agents that were asked last, in that order."""
        slots, branches = self._deciding, self._discrete.shape[1]
        self._continuous[slots] = decided.continuous
        self._discrete[slots] = decided.discrete[:, :branches]
        self._left[slots] = self._steps if self._steps is not None else decided.discrete[:, branches] + 1
        self._forget_rewards(slots)

    def actions(self) -> ActionBatch:
        """Return the actions of all that the environment asked, for its next step."""
        slots = self._acting
        self._left[slots] -= 1
        self._frames[slots] += 1
        return ActionBatch(self._continuous[slots], self._discrete[slots])

    def add(self, steps: AgentSteps) -> AgentSteps | None:
        """Add what an environment step brought; return the rows of those that ended or have to decide, if any."""
        ended = steps.ended
        slots = self._locate(steps)
        ending, acting = slots[:ended], slots[ended:]
        rewards = _rewards(steps)
        frames = np.empty(len(slots), np.int32)
        frames[:ended] = self._frames[ending]
        totals = np.empty((len(slots), 2, 2))
        totals[:ended] = self._totals(ending, rewards[:ended])
        if ended:
            self._forget_rewards(ending)
            self._left[ending] = 0
        self._begin_episodes(acting, steps)
        totals[ended:] = self._sums[acting] = self._totals(acting, rewards[ended:])
        self._weights[acting] *= self._discount
        frames[ended:] = self._frames[acting]
        deciding = self._left[acting] <= 0
        if steps.action_masks is not None:
            deciding |= self._forbidden(acting, steps.action_masks)
        self._acting, self._deciding = acting, acting[deciding]
        if ended:
            self._forget_agents(ending, acting)
        if not ended and not len(self._deciding):
            return None
        return self._rows(steps, deciding, totals.astype(np.float32), frames)

    def drop(self, env_ids: NDArray[np.int32]) -> None:
        """Forget the agents of some instances."""
        used = self._slots.used()
        gone = used[np.isin(self._env_ids[used], env_ids)]
        if len(gone):
            self._slots.remove(gone)

    def _locate(self, steps: AgentSteps) -> Numbers:
        """Slots [n]; those that decide for the first time get one, others that are unknown are `NOBODY`."""
        slots = self._slots.find(steps.agent_ids)
        acting = slots[steps.ended :]
        new = (acting == NOBODY).nonzero()[0]
        if len(new):
            acting[new] = added = self._slots.add(steps.agent_ids[steps.ended :][new])
            self._enlarge()
            self._episode_ids[added] = steps.episode_ids[steps.ended :][new] - 1  # none that is under way
            self._env_ids[added] = steps.env_ids[steps.ended :][new]
        return slots

    def _begin_episodes(self, acting: Numbers, steps: AgentSteps) -> None:
        """Let agents in a new episode begin anew, also where the one before never ended."""
        episode_ids = steps.episode_ids[steps.ended :]
        fresh = acting[self._episode_ids[acting] != episode_ids]
        if len(fresh):
            self._episode_ids[acting] = episode_ids
            self._left[fresh] = 0
            self._forget_rewards(fresh)

    def _totals(self, slots: Numbers, rewards: Floats) -> NDArray[np.float64]:
        """Sums [k, 2, 2] with the rewards [k, 2] of one more step."""
        factors = np.ones((len(slots), 1, 2))
        factors[:, 0, 0] = self._weights[slots]
        sums: NDArray[np.float64] = self._sums[slots] + factors * rewards[:, :, None]
        return sums

    def _forbidden(self, acting: Numbers, masks: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """[d] true where a mask forbids what the agent does."""
        chosen = self._firsts + self._discrete[acting]
        forbidden: NDArray[np.bool_] = np.logical_or.reduce(~np.take_along_axis(masks, chosen, axis=1), axis=1)
        return forbidden

    def _rows(
        self, steps: AgentSteps, deciding: NDArray[np.bool_], totals: Floats, frames: NDArray[np.int32]
    ) -> AgentSteps:
        masks = steps.action_masks
        if masks is not None:
            masks = masks[deciding]
            if self._choices is not None:
                masks = np.concatenate((masks, np.ones((len(masks), self._choices), np.bool_)), axis=1)
        rows: Any = slice(None)
        if not deciding.all():
            rows = np.concatenate((np.arange(steps.ended), steps.ended + deciding.nonzero()[0]))
        return replace(
            steps,
            agent_ids=steps.agent_ids[rows],
            env_ids=steps.env_ids[rows],
            episode_ids=steps.episode_ids[rows],
            observations=tuple(observation[rows] for observation in steps.observations),
            rewards=totals[rows, 0, 0],
            action_masks=masks,
            group_ids=None if steps.group_ids is None else steps.group_ids[rows],
            group_rewards=None if steps.group_rewards is None else totals[rows, 1, 0],
            env_frames=frames[rows],
            undiscounted=None if self._discount == 1 else totals[rows, :, 1],
        )

    def _forget_rewards(self, slots: Numbers) -> None:
        self._sums[slots] = 0.0
        self._weights[slots] = 1.0
        self._frames[slots] = 0

    def _forget_agents(self, ending: Numbers, acting: Numbers) -> None:
        """Free the slots of agents that ended and are not there again."""
        gone = ending[(ending != NOBODY) & ~np.isin(ending, acting)]
        if len(gone):
            self._slots.remove(gone)

    def _enlarge(self) -> None:
        total = self._slots.total
        if total > len(self._left):
            for name, values in vars(self).items():
                if isinstance(values, np.ndarray) and name not in _NOT_BY_SLOT:
                    setattr(self, name, enlarged(values, total))


_NOT_BY_SLOT = ("_firsts", "_acting", "_deciding")


def _rewards(steps: AgentSteps) -> Floats:
    """[n, 2] own and group's rewards."""
    rewards = np.zeros((len(steps.rewards), 2), np.float32)
    rewards[:, 0] = steps.rewards
    if steps.group_rewards is not None:
        rewards[:, 1] = steps.group_rewards
    return rewards

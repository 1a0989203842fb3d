"""Action repeat: an environment group whose agents hold each action for several environment steps.

The number of steps is fixed, or the policy chooses it in the last discrete branch of each action, `step_mul`. Agents
hold their actions independently. An agent decides again after that many environment steps, when its episode ends, or
when an action mask forbids the held action. A step counts only if the environment requests the agent's action: in a
turn-based game, only the agent's own turns count.

`RepeatingGroup` wraps groups of any kind; `HeldActions` computes with entire columns, without a Python loop over
agents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config import ActionRepeatSettings
from headrace.queues.messages import ActionBatch, Array, Floats
from headrace.queues.specs import STEP_MUL, ActionSpec, BehaviorSpec
from headrace.stages.environments.parameters import Parameterised
from headrace.stages.environments.protocol import AgentSteps, EnvironmentGroup, StepResult, WrappedGroup, settled
from headrace.stages.errors import StageError
from headrace.stages.slots import NOBODY, Numbers, Slots, enlarged

_STEPS_AT_ONCE = 8
"""Maximum number of environment steps in a tick in which no agent decides. A limit is necessary because the host waits
for each tick."""
_NONE = np.empty(0, np.int64)
_NOT_BY_SLOT = ("_firsts", "_acting", "_deciding")


# As a wrapper, action repeat works with every kind of environment and needs no change to stages (docs/decisions/028).
class RepeatingGroup(WrappedGroup):
    """An environment group in which actions last several environment steps.

    Args:
        group: the environments, which this group closes.
        settings: how many steps each action lasts.
    """

    def __init__(self, group: EnvironmentGroup, settings: ActionRepeatSettings) -> None:
        super().__init__(group)
        self._settings = settings
        self.behavior_specs: Mapping[str, BehaviorSpec] = {}
        self._holds: dict[str, HeldActions] = {}
        self._acting_ids: tuple[str, ...] = ()
        """Ids of the behaviours that had rows in the last environment step."""
        if isinstance(group, Parameterised):
            self.set_parameters = group.set_parameters
        self._learn_specs()

    async def reset(self, seed: int | None = None) -> StepResult:
        """Reset all instances and drop all held actions."""
        self._holds = {}
        return self._without_held(await settled(self._group.reset(seed)))

    async def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        """Start the new actions, and advance until an agent must decide, or for `_STEPS_AT_ONCE` steps."""
        for behavior_id, decided in actions.items():
            self._holds[behavior_id].begin(decided)
        for _ in range(_STEPS_AT_ONCE):
            held = {behavior_id: self._holds[behavior_id].actions() for behavior_id in self._acting_ids}
            result = self._without_held(await settled(self._group.step(held)))
            if _tells_something(result):
                break
        return result

    def _learn_specs(self) -> None:
        inner, known = self._group.behavior_specs, self.behavior_specs
        if len(inner) != len(known):
            self.behavior_specs = {key: known.get(key) or repeated(inner[key], self._settings) for key in inner}

    def _without_held(self, result: StepResult) -> StepResult:
        """Return the result without the rows of agents that are still holding an action."""
        for gone in result.gone:
            for holds in self._holds.values():
                holds.drop(gone)
        self._learn_specs()
        found: dict[str, AgentSteps] = {}
        acting_ids = []
        for behavior_id, steps in result.steps.items():
            if not len(steps.agent_ids):
                continue
            acting_ids.append(behavior_id)
            if behavior_id not in self._holds:
                spec = self._group.behavior_specs[behavior_id]
                self._holds[behavior_id] = HeldActions(spec.actions, self._settings, spec.grouped)
            rows = self._holds[behavior_id].add(steps)
            if rows is not None:
                found[behavior_id] = rows
        self._acting_ids = tuple(acting_ids)
        return replace(result, steps=found)


def repeated(spec: BehaviorSpec, settings: ActionRepeatSettings) -> BehaviorSpec:
    """Return the spec with action repeat added.

    Raises:
        StageError: if the environment already repeats actions, or a learned repeat needs a name that is already taken.
    """
    actions = spec.actions
    if spec.action_repeat is not None:
        raise StageError(f"environment.action_repeat: the environment of {spec.behavior_id} already repeats actions")
    if settings.max is None:
        return replace(spec, action_repeat="fixed", spaces={**(spec.spaces or {}), "action_repeat": settings.steps})
    if STEP_MUL in (*actions.continuous_heads, *actions.branch_heads):
        raise StageError(
            f"environment.action_repeat: the actions of {spec.behavior_id} already have a part named {STEP_MUL}, which "
            "is the name of the learned repeat; rename that part, or use {steps: …} for a fixed repeat"
        )
    branches, names = (*actions.discrete_branches, settings.max), (*actions.branch_heads, STEP_MUL)
    return replace(
        spec, actions=replace(actions, discrete_branches=branches, branch_names=names), action_repeat="learned"
    )


def _tells_something(result: StepResult) -> bool:
    games = result.games is not None and len(result.games.env_ids)
    return bool(result.steps or result.statistics or games or result.gone)


class HeldActions:
    """Holds each agent's action for that agent's number of environment steps.

    Sums accumulate the rewards since an agent's last decision: its own reward and, if there are groups, its group's. If
    rewards are discounted, undiscounted sums are accumulated too. Slot `NOBODY` stands for agents that have never
    decided.

    Axis letters: n rows of an environment step, a agents whose actions the environment requests, s sums.

    Args:
        actions: the environment's actions, without `step_mul`.
        settings: how many steps each action lasts.
        grouped: True if there are group rewards.
    """

    def __init__(self, actions: ActionSpec, settings: ActionRepeatSettings, grouped: bool) -> None:
        self._steps, self._choices = settings.steps, settings.max
        self._grouped = grouped
        self._discount = settings.discount
        self._firsts = np.cumsum([0, *actions.discrete_branches])[:-1]
        self._slots = Slots(1)
        total = self._slots.total
        self._continuous = np.zeros((total, actions.continuous_size), np.float32)
        self._discrete = np.zeros((total, len(actions.discrete_branches)), np.int32)
        self._left = np.zeros(total, np.int64)
        self._frames = np.zeros(total, np.int32)
        self._weights = np.ones(total)
        """[total] the discount factor for each agent's next reward."""
        self._sums = np.zeros((total, (1 + grouped) * (1 if settings.discount == 1 else 2)))
        self._episode_ids = np.zeros(total, np.int64)
        self._env_ids = np.zeros(total, np.int64)
        self._acting = self._deciding = _NONE
        """Slots of the agents whose actions the environment last requested, and slots of the agents that must decide
        now."""
        self._known = b""
        """Bytes of the last step's agent and episode ids, which show whether the agents are unchanged. Empty if an
        episode ended in that step."""

    def begin(self, decided: ActionBatch) -> None:
        """Start holding the new actions: one for each agent that had to decide, in the order of those agents' rows."""
        slots, branches = self._deciding, self._discrete.shape[1]
        self._continuous[slots] = decided.continuous
        self._discrete[slots] = decided.discrete[:, :branches]
        self._left[slots] = self._steps if self._steps is not None else decided.discrete[:, branches] + 1
        self._forget_rewards(slots)

    def actions(self) -> ActionBatch:
        """Return the actions that the environment needs for its next step."""
        slots = self._acting
        self._left[slots] -= 1
        self._frames[slots] += 1
        return ActionBatch(self._continuous[slots], self._discrete[slots])

    def add(self, steps: AgentSteps) -> AgentSteps | None:
        """Add an environment step's rows; return the rows of ended or deciding agents, or None if there are none."""
        ended = steps.ended
        key = steps.agent_ids.tobytes() + steps.episode_ids.tobytes()
        as_before = not ended and key == self._known
        slots = self._acting if as_before else self._locate(steps)
        self._known = b"" if ended else key
        self._acting = acting = slots[ended:]
        totals, frames = self._sums[slots], self._frames[slots]
        totals += self._received(steps, slots)
        if not as_before:
            fresh = ended + self._begin_episodes(slots[:ended], acting, steps)
            totals[fresh], frames[fresh] = 0.0, 0
        self._sums[acting] = totals[ended:]
        if self._discount != 1:
            self._weights[acting] *= self._discount
        deciding = self._left[acting] <= 0
        if steps.action_masks is not None:
            deciding |= self._forbidden(acting, steps.action_masks)
        self._deciding = acting[deciding]
        if not ended and not len(self._deciding):
            return None
        return self._rows(steps, deciding, totals.astype(np.float32), frames)

    def drop(self, env_ids: NDArray[np.int32]) -> None:
        """Forget the agents of the given instances."""
        used = self._slots.used()
        self._forget(used[np.isin(self._env_ids[used], env_ids)])

    def _locate(self, steps: AgentSteps) -> Numbers:
        """Return each row's slot [n]: a new slot for an agent's first decision, `NOBODY` for other unknown agents."""
        slots = self._slots.find(steps.agent_ids)
        acting = slots[steps.ended :]
        new = (acting == NOBODY).nonzero()[0]
        if len(new):
            acting[new] = added = self._slots.add(steps.agent_ids[steps.ended :][new])
            self._enlarge()
            self._episode_ids[added] = steps.episode_ids[steps.ended :][new] - 1  # no running episode
            self._env_ids[added] = steps.env_ids[steps.ended :][new]
        return slots

    def _begin_episodes(self, ending: Numbers, acting: Numbers, steps: AgentSteps) -> Numbers:
        """Forget agents whose episodes ended. Return the indices [k] along axis a of the agents that begin one.

        The previous episode of an agent may have ended in this step or earlier, or may never have ended.
        """
        episode_ids = steps.episode_ids[steps.ended :]
        begins = self._episode_ids[acting] != episode_ids
        if len(ending):
            ended = np.zeros(len(self._left), np.bool_)
            ended[ending] = True
            begins |= ended[acting]
            ended[acting] = ended[NOBODY] = False
            self._forget(ended.nonzero()[0])
        fresh: Numbers = begins.nonzero()[0]
        if len(fresh):
            self._episode_ids[acting] = episode_ids
            self._left[acting[fresh]] = 0
            self._forget_rewards(acting[fresh])
        return fresh

    def _received(self, steps: AgentSteps, slots: Numbers) -> NDArray[Any]:
        """Return the step's rewards [n, s], one column for each sum."""
        rewards: Array = steps.rewards[:, None]
        if self._grouped:
            shared = np.zeros(len(slots), np.float32) if steps.group_rewards is None else steps.group_rewards
            rewards = np.stack((steps.rewards, shared), axis=1)
        if self._discount == 1:
            return rewards
        return np.concatenate((self._weights[slots][:, None] * rewards, rewards), axis=1)

    def _forbidden(self, acting: Numbers, masks: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return flags [a], true where a mask forbids the agent's held action."""
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
        undiscounted = None
        if self._discount != 1:
            undiscounted = np.zeros((len(totals), 2), np.float32)
            undiscounted[:, : 1 + self._grouped] = totals[:, 1 + self._grouped :]
        return replace(
            steps,
            agent_ids=steps.agent_ids[rows],
            env_ids=steps.env_ids[rows],
            episode_ids=steps.episode_ids[rows],
            observations=tuple(observation[rows] for observation in steps.observations),
            rewards=totals[rows, 0],
            action_masks=masks,
            group_ids=None if steps.group_ids is None else steps.group_ids[rows],
            group_rewards=totals[rows, 1] if self._grouped else None,
            env_frames=frames[rows],
            undiscounted=None if undiscounted is None else undiscounted[rows],
        )

    def _forget_rewards(self, slots: Numbers) -> None:
        self._sums[slots] = 0.0
        self._weights[slots] = 1.0
        self._frames[slots] = 0

    def _forget(self, slots: Numbers) -> None:
        if len(slots):
            self._slots.remove(slots)
            self._known = b""

    def _enlarge(self) -> None:
        total = self._slots.total
        if total > len(self._left):
            for name, values in vars(self).items():
                if isinstance(values, np.ndarray) and name not in _NOT_BY_SLOT:
                    setattr(self, name, enlarged(values, total))

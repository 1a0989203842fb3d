"""Action repeat: a group of environments whose agents' actions are held for several environment steps.

How many is fixed, or the policy's choice: then the last discrete branch of each action, `step_mul`, says it. Every
agent has a hold of its own. It is asked again when its hold is over: after so many environment steps, at its episode's
end, or where an action mask forbids what it does. An environment step of an agent is one for which the environment asks
it for an action, so in a turn-based game a turn of its own.

Groups of any kind are wrapped, by `headrace.stages.environments.factory`; `holds` does the arithmetic.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import replace

from headrace.config import ActionRepeatSettings
from headrace.queues.messages import ActionBatch
from headrace.queues.specs import STEP_MUL, BehaviorSpec
from headrace.stages.environments.held_actions import HeldActions
from headrace.stages.environments.parameters import Parameterised
from headrace.stages.environments.protocol import AgentSteps, EnvironmentGroup, Punctual, StepResult, Stoppable, settled
from headrace.stages.errors import StageError

_STEPS_AT_ONCE = 8
"""Environment steps in one tick at most: so many of which nobody has to be told. The host waits for them."""


class RepeatingGroup:
    """An environment group in which actions last several environment steps.

    Args:
        group: the environments; the group closes them.
        settings: for how many steps.
    """

    def __init__(self, group: EnvironmentGroup, settings: ActionRepeatSettings) -> None:
        self.num_envs = group.num_envs
        self._group = group
        self._settings = settings
        self.behavior_specs: Mapping[str, BehaviorSpec] = {}
        self._holds: dict[str, HeldActions] = {}
        self._asked: tuple[str, ...] = ()
        """Behaviour ids with rows in the last environment step."""
        self.has_deadlines = isinstance(group, Punctual) and group.has_deadlines
        if isinstance(group, Parameterised):
            self.set_parameters = group.set_parameters
        self._learn_specs()

    async def reset(self, seed: int | None = None) -> StepResult:
        """Reset all instances; no action is held."""
        self._holds = {}
        return self._told(await settled(self._group.reset(seed)))

    async def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        """Begin the actions of those who were asked, and advance until somebody has to be asked, but not for long."""
        for behavior_id, decided in actions.items():
            self._holds[behavior_id].begin(decided)
        for _ in range(_STEPS_AT_ONCE):
            held = {behavior_id: self._holds[behavior_id].actions() for behavior_id in self._asked}
            result = self._told(await settled(self._group.step(held)))
            if _tells_something(result):
                break
        return result

    def request_stop(self) -> None:
        """Let a step that hangs end soon, if the environments can do that."""
        if isinstance(self._group, Stoppable):
            self._group.request_stop()

    def close(self) -> Awaitable[None] | None:
        """Close the environments."""
        return self._group.close()

    def _learn_specs(self) -> None:
        inner, known = self._group.behavior_specs, self.behavior_specs
        if len(inner) != len(known):
            self.behavior_specs = {key: known.get(key) or repeated(inner[key], self._settings) for key in inner}

    def _told(self, result: StepResult) -> StepResult:
        """Return what is left of a result: without the agents that go on with what they do."""
        for gone in (result.lost, result.closed):
            if gone is not None:
                for holds in self._holds.values():
                    holds.drop(gone)
        self._learn_specs()
        found: dict[str, AgentSteps] = {}
        asked = []
        for behavior_id, steps in result.steps.items():
            if not len(steps.agent_ids):
                continue
            asked.append(behavior_id)
            if behavior_id not in self._holds:
                spec = self._group.behavior_specs[behavior_id]
                self._holds[behavior_id] = HeldActions(spec.actions, self._settings, spec.grouped)
            told = self._holds[behavior_id].add(steps)
            if told is not None:
                found[behavior_id] = told
        self._asked = tuple(asked)
        return replace(result, steps=found)


def repeated(spec: BehaviorSpec, settings: ActionRepeatSettings) -> BehaviorSpec:
    """Return a spec with action repeat.

    Raises:
        StageError: if it has one already, or a learned one would be its second head of that name.
    """
    actions = spec.actions
    if spec.action_repeat is not None:
        raise StageError(f"environment.action_repeat: the environment of {spec.behavior_id} repeats actions by itself")
    if settings.max is None:
        return replace(spec, action_repeat="fixed", spaces={**(spec.spaces or {}), "action_repeat": settings.steps})
    if STEP_MUL in (*actions.continuous_heads, *actions.branch_heads):
        raise StageError(
            f"environment.action_repeat: the actions of {spec.behavior_id} have a part named {STEP_MUL} already, which "
            "is the name of the learned repeat; expected another name, or {steps: …} for a fixed repeat"
        )
    branches, names = (*actions.discrete_branches, settings.max), (*actions.branch_heads, STEP_MUL)
    return replace(
        spec, actions=replace(actions, discrete_branches=branches, branch_names=names), action_repeat="learned"
    )


def _tells_something(result: StepResult) -> bool:
    games = result.games is not None and len(result.games.env_ids)
    gone = result.lost is not None or result.closed is not None
    return bool(result.steps or result.statistics or games or gone)

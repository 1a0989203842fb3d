"""An environment group in which one behaviour's agents have the name of a league learner."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import Any

from headrace.queues.messages import ActionBatch
from headrace.queues.specs import BehaviorSpec, behavior_name
from headrace.stages.environments.protocol import EnvironmentGroup, StepResult, WrappedGroup


class LearnersGroup(WrappedGroup):
    """Gives one of the environments' behaviours a learner's name, in specs, steps and statistics.

    Args:
        group: the environments.
        behavior: the behaviour's name in the environments.
        learner: the learner's name.
    """

    def __init__(self, group: EnvironmentGroup, behavior: str, learner: str) -> None:
        super().__init__(group)
        self._behavior = behavior
        self._learner = learner
        self._names: dict[str, str] = {}
        for name in ("set_parameters", "limits_episodes"):  # if the environments take parameters
            if hasattr(group, name):
                setattr(self, name, getattr(group, name))
        self._specs: dict[str, BehaviorSpec] = {}
        self.behavior_specs: Mapping[str, BehaviorSpec] = self._specs
        self._adopt()

    def reset(self, seed: int | None = None) -> StepResult | Awaitable[StepResult]:
        """Reset the environments."""
        return self._named(self._group.reset(seed))

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult | Awaitable[StepResult]:
        """Step the environments."""
        return self._named(
            self._group.step({inner: actions[name] for inner, name in self._names.items() if name in actions})
        )

    def _named(self, result: StepResult | Awaitable[StepResult]) -> StepResult | Awaitable[StepResult]:
        if inspect.isawaitable(result):
            return self._later(result)
        assert isinstance(result, StepResult)
        if len(self._group.behavior_specs) > len(self._names):
            self._adopt()
        steps = {self._names[behavior_id]: each for behavior_id, each in result.steps.items()}
        own = result.behavior_statistics
        if self._behavior in own:
            own = {self._learner if name == self._behavior else name: each for name, each in own.items()}
        return replace(result, steps=steps, behavior_statistics=own)

    async def _later(self, result: Awaitable[StepResult]) -> Any:
        return self._named(await result)

    def _adopt(self) -> None:
        for behavior_id, spec in self._group.behavior_specs.items():
            if behavior_id not in self._names:
                name = behavior_name(behavior_id)
                own = self._learner + behavior_id.removeprefix(name) if name == self._behavior else behavior_id
                self._names[behavior_id] = own
                self._specs[own] = spec if own == behavior_id else replace(spec, behavior_id=own)

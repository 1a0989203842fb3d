"""ML-Agents' self-play task: an agent of each side, each with a `Simple` task of its own, and the log of all episodes.

The sides don't meet. What the cases tell is who plays by which policy: an agent that plays by a frozen policy stays as good
as that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from acceptance.acceptance_envs import Simple
from acceptance.episode_log import EpisodeLog

from headrace.queues.messages import ActionBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages import TrajectoryBatch
from headrace.stages.environments.protocol import StepResult


class Sides:
    """Agents of several behaviour ids, one of each in each instance.

    Args:
        num_envs: instances.
        behavior: not used: `sides` says what the agents are.
        sides: their behaviour ids.
        options: of `Simple`.
    """

    def __init__(self, num_envs: int, behavior: str, sides: Sequence[str], **options: Any) -> None:
        self.num_envs = num_envs
        self._tasks = {side: Simple(num_envs, side, **options) for side in sides}
        self.behavior_specs: Mapping[str, BehaviorSpec] = {
            side: spec for task in self._tasks.values() for side, spec in task.behavior_specs.items()
        }

    def reset(self, seed: int | None = None) -> StepResult:
        """Start all of them anew, each with a goal of its own."""
        seeds = np.random.SeedSequence(seed).generate_state(len(self._tasks))
        return self._together([task.reset(int(own)) for task, own in zip(self._tasks.values(), seeds, strict=True)])

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        """Advance all of them."""
        return self._together([task.step(actions) for task in self._tasks.values()])

    def close(self) -> None:
        """Nothing is open."""

    def _together(self, results: Sequence[StepResult]) -> StepResult:
        steps = {}
        for number, (side, result) in enumerate(zip(self._tasks, results, strict=True)):
            own = result.steps[side]
            steps[side] = replace(own, agent_ids=own.agent_ids + number * self.num_envs)
        return StepResult(steps)


class SideLog(EpisodeLog):
    """Writes the return of every episode, of those too that nobody learns from, by behaviour id."""

    def process(self, item: TrajectoryBatch) -> Iterator[TrajectoryBatch]:
        """Write, then pass on."""
        if item.episodes:
            self._write(item.behavior_id, item.episodes["episode_returns"], item.episodes["episode_lengths"])
        yield item

"""Steps of a goal environment for a replay memory that relabels, and a generator that draws what it is told."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from trainer_samples import context_of

from headrace.config.hyperparameters import HindsightSettings
from headrace.queues.messages import TrajectoryBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.observations import EncodedObservations, ObservationLayout
from headrace.stages.trainer.sac.hindsight import HindsightMemory
from headrace.stages.trainer.sac.replay_memory import ReplayMemory

SPEC = BehaviorSpec(
    "Test",
    (
        ObservationSpec("observation", (1,)),
        ObservationSpec("achieved_goal", (1,)),
        ObservationSpec("desired_goal", (1,), goal=True),
    ),
    ActionSpec(1),
)
DISTANCE = 50.0
"""The goal of all steps: on a line, so far away."""


class Goals:
    """Rewards of goals by a function of both."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.size = 0

    def open(self, size: int) -> None:
        self.size = size

    def __call__(self, achieved: Any, desired: Any) -> Any:
        return np.asarray(self._function(achieved, desired), np.float32)

    def close(self) -> None:
        pass


def distance(achieved: Any, desired: Any) -> Any:
    return -np.abs(achieved[:, 0] - desired[:, 0])


def memory_of(
    goals: str = "future",
    per_transition: int = 4,
    capacity: int = 64,
    rewards: Any = distance,
    spec: BehaviorSpec = SPEC,
    plain: bool = False,
    replay_shards: int = 0,
) -> Any:
    """A memory of steps of `batch_of`; `plain` for one without hindsight."""
    layout = ObservationLayout(spec)
    if plain:
        return ReplayMemory(spec, layout, capacity)
    found: Any = rewards if rewards is None or isinstance(rewards, Goals) else Goals(rewards)
    context = replace(context_of("sac", spec), goal_rewards=found, replay_shards=replay_shards)
    settings = HindsightSettings.model_validate({"goals": goals, "per_transition": per_transition})
    return HindsightMemory(context, layout, capacity, settings)


def batch_of(
    memory: Any, steps: Sequence[tuple[int, float, str]]
) -> tuple[TrajectoryBatch, EncodedObservations, EncodedObservations]:
    """One batch for `add` of pieces of one row: the agent, what its step achieves, and how the piece ends."""
    known = vars(memory).setdefault("agents", {})
    rows, finals, episodes, rewards = [], [], [], []
    for agent, achieved, ending in steps:
        episode, before = known.get(agent, (0, 0.0))
        rows.append([0.5, before, DISTANCE])
        finals.append([0.5, achieved, DISTANCE])
        episodes.append(episode)
        rewards.append(-abs(achieved - DISTANCE))
        known[agent] = (episode, achieved) if ending == "cut" else (episode + 1, 0.0)
    n = len(steps)
    columns = {
        "rewards": np.array(rewards, np.float32),
        "continuous_actions": np.zeros((n, 1), np.float32),
        "log_probs": np.zeros((n, 1), np.float32),
    }
    pieces = {
        "lengths": np.ones(n, np.int32),
        "agent_ids": np.array([agent for agent, _, _ in steps]),
        "episode_ids": np.array(episodes),
        "terminated": np.array([ending == "terminated" for _, _, ending in steps]),
        "truncated": np.array([ending == "truncated" for _, _, ending in steps]),
    }
    before, after = (EncodedObservations(np.array(each, np.float32)) for each in (rows, finals))
    return TrajectoryBatch("Test", 0, columns, pieces), before, after


class Scripted(np.random.Generator):
    """Draws what it is told, once it has been asked for numbers between the bounds that are expected.

    Args:
        draws: of each call both bounds, and what it returns.
    """

    def __init__(self, draws: Sequence[tuple[Any, Any, Any]]) -> None:
        super().__init__(np.random.PCG64())
        self._draws = list(draws)

    def integers(self, low: Any, high: Any = None, *_: Any, **__: Any) -> Any:
        lowest, above, drawn = self._draws.pop(0)
        np.testing.assert_array_equal(low, lowest)
        np.testing.assert_array_equal(high, above)
        return np.asarray(drawn)

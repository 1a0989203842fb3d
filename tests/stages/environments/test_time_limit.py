"""Episodes that are truncated at `environment.max_episode_steps`, in environments of every kind."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from environment_requests import group_of
from small_zoo import Counting, Crowd

from headrace.config import EnvironmentSettings
from headrace.queues.messages import ActionBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.environments.factory import LimitedGroup
from headrace.stages.environments.pettingzoo.group import PettingZooGroup
from headrace.stages.environments.pettingzoo.instances import LimitedInstance, instance_of
from headrace.stages.environments.protocol import AgentSteps, StepResult


def settled(result: StepResult | Awaitable[StepResult]) -> StepResult:
    async def wait(coming: Awaitable[StepResult]) -> StepResult:
        return await coming

    return asyncio.run(wait(result)) if isinstance(result, Awaitable) else result


def idle(group, result):
    """Actions of zeros for all that are asked."""
    actions = {}
    for behavior_id, steps in result.steps.items():
        spec, count = group.behavior_specs[behavior_id].actions, len(steps.agent_ids) - steps.ended
        shape = (count, len(spec.discrete_branches))
        actions[behavior_id] = ActionBatch(
            np.zeros((count, spec.continuous_size), np.float32), np.zeros(shape, np.int32)
        )
    return actions


def played(group, ticks, seed=3):
    """The results of a reset and of so many steps with actions of zeros."""
    results = [settled(group.reset(seed))]
    for _ in range(ticks):
        results.append(settled(group.step(idle(group, results[-1]))))
    return results


def endings(results):
    """(tick, agent, terminated, truncated) of each ending, of all behaviours."""
    return [
        (tick, int(steps.agent_ids[row]), bool(steps.terminated[row]), bool(steps.truncated[row]))
        for tick, result in enumerate(results)
        for steps in result.steps.values()
        for row in range(steps.ended)
    ]


def pendulum(**settings):
    return group_of(EnvironmentSettings(kind="gymnasium", id="Pendulum-v1", **settings), "P", 1)


def test_an_environment_of_gymnasium_is_truncated_and_reset_at_its_limit():
    results = played(pendulum(max_episode_steps=5), 12)
    assert endings(results) == [(5, 0, False, True), (10, 0, False, True)]
    (steps,) = results[5].steps.values()
    last, first = steps.observations[0]
    assert not np.allclose(last, first)  # of another episode
    assert steps.rewards[0] < 0
    assert steps.rewards[1] == 0


def test_terminations_and_the_environment_s_own_limit_are_kept():
    group = group_of(EnvironmentSettings(kind="gymnasium", id="CartPole-v1", max_episode_steps=400), "P", 1)
    assert all(terminated for _, _, terminated, _ in endings(played(group, 60)))
    assert endings(played(pendulum(max_episode_steps=900), 205)) == [(200, 0, False, True)]


def test_with_action_repeat_the_limit_counts_environment_steps():
    results = played(pendulum(max_episode_steps=6, action_repeat=3), 4)
    assert endings(results) == [(2, 0, False, True), (4, 0, False, True)]


@dataclass
class Endless:
    """Two agents who count their decisions, as their observation; the second sits out each other tick."""

    num_envs: int = 1
    ticks: int = 0
    terminates_at: int | None = None
    behavior_specs: Mapping[str, BehaviorSpec] = field(
        default_factory=lambda: {"B": BehaviorSpec("B", (ObservationSpec("o", (1,)),), ActionSpec(1))}
    )

    def reset(self, seed=None):
        self.ticks, self.episode, self.decided = 0, 0, [0, 0]
        return self.result([])

    def step(self, actions):
        self.ticks += 1
        return self.result([0] if self.ticks == self.terminates_at else [])

    def close(self):
        return None

    def result(self, ended):
        asked = [0] if self.ticks % 2 else [0, 1]
        for agent in asked:
            self.decided[agent] += 1
        seen = [self.decided[agent] - 1 for agent in ended] + [self.decided[agent] for agent in asked]
        old = self.episode
        self.episode += bool(ended)
        agents = np.array([*ended, *asked], np.int64)
        episodes = np.array([old] * len(ended) + [self.episode * (agent == 0) for agent in asked], np.int64)
        return StepResult(
            {
                "B": AgentSteps(
                    agents,
                    np.zeros(len(agents), np.int32),
                    episodes,
                    (np.array(seen, np.float32)[:, None],),
                    np.ones(len(agents), np.float32) * (self.ticks > 0),
                    len(ended),
                    np.ones(len(ended), np.bool_),
                    np.zeros(len(ended), np.bool_),
                )
            }
        )


def test_agents_of_environments_that_can_not_be_reset_singly_continue_in_a_new_episode():
    results = played(LimitedGroup(Endless(), 3), 8)
    # The first agent decides at ticks 0, 1, 2, is cut at 3 and at 6; the other decides at 0, 2, 4, is cut at 6.
    assert endings(results) == [(3, 0, False, True), (6, 0, False, True), (6, 1, False, True)]
    both = results[6].steps["B"]
    assert both.agent_ids.tolist() == [0, 1, 0, 1]
    assert both.rewards.tolist() == [1, 1, 0, 0]
    assert both.observations[0][:2].tolist() == both.observations[0][2:].tolist()
    numbers = [int(r.steps["B"].episode_ids[r.steps["B"].ended :][0]) for r in results]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == 3
    assert both.episode_ids[0] == numbers[5]  # the ending is of the episode before
    assert both.episode_ids[2] == numbers[6]


def test_a_termination_resets_the_count():
    results = played(LimitedGroup(Endless(terminates_at=2), 3), 6)
    assert endings(results) == [(2, 0, True, False), (5, 0, False, True), (6, 1, False, True)]
    numbers = [int(r.steps["B"].episode_ids[r.steps["B"].ended :][0]) for r in results]
    assert numbers == sorted(numbers)


def test_a_user_s_vector_environment_continues_in_a_new_episode(tmp_path):
    (tmp_path / "limited_factory.py").write_text(
        "import gymnasium\nfrom gymnasium.vector import SyncVectorEnv\n"
        "def vector(num_envs):\n"
        "    return SyncVectorEnv([lambda: gymnasium.make('Pendulum-v1')] * num_envs)\n"
    )
    settings = EnvironmentSettings(kind="gymnasium", factory="limited_factory:vector", max_episode_steps=5)
    results = played(group_of(settings, "P", 2, tmp_path), 5)
    assert endings(results) == [(5, 0, False, True), (5, 1, False, True)]
    (steps,) = results[5].steps.values()
    np.testing.assert_array_equal(steps.observations[0][:2], steps.observations[0][2:])


def zoo(env, steps):
    return PettingZooGroup([LimitedInstance(instance_of(env, "zoo"), steps)], "B", "zoo")


def test_all_agents_of_a_parallel_environment_end_together_when_one_is_at_the_limit():
    env = Crowd({"a": (0, 99, 1.0), "b": (0, 99, 2.0), "late": (2, 99, 3.0)})
    results = played(zoo(env, 3), 4)
    assert [(tick, truncated) for tick, _, _, truncated in endings(results)] == [(3, True)] * 3
    assert len(env.seeds) == 2  # reset once more


@pytest.mark.parametrize("steps", [1, 2])
def test_waiting_agents_end_with_the_agent_to_move(steps):
    env = Counting(target=50, tax=0.25)
    results = played(zoo(env, steps), 2 * steps)
    assert [(tick, truncated) for tick, _, _, truncated in endings(results)] == [(2 * steps, True)] * 2
    rewards = [steps_.rewards[: steps_.ended].tolist() for steps_ in results[2 * steps].steps.values()]
    assert sorted(itertools.chain(*rewards)) == [-0.25, 0.0]  # the last move's tax, which its maker does not pay
    assert len(env.options) == 2

"""Environment parameters reach PettingZoo environments as reset options, whichever their API."""

from __future__ import annotations

import numpy as np
import pytest
from small_zoo import Counting, Crowd

from headrace.queues.messages import ActionBatch
from headrace.stages.environments.parameters import EnvironmentParameters, EpisodeParameters, connect_parameters
from headrace.stages.environments.pettingzoo.group import PettingZooGroup
from headrace.stages.environments.pettingzoo.instances import instance_of

UNIFORM = {"sampler_type": "uniform", "sampler_parameters": {"min_value": 2, "max_value": 3}}


def group_of(*envs):
    return PettingZooGroup([instance_of(env, "Zoo") for env in envs], "All", "Zoo")


def told(group, plain, generation=0):
    """Parameters that the group asks."""
    parameters = EpisodeParameters()
    parameters.receive(EnvironmentParameters(generation, plain))
    parameters.reseed(0, 0)
    connect_parameters(group, parameters)
    return parameters


def play(group, ticks):
    """Everybody takes the first choice, from a reset on."""
    result = group.reset(0)
    for _ in range(ticks):
        counts = {each: len(steps.agent_ids) - steps.ended for each, steps in result.steps.items()}
        result = group.step(
            {
                each: ActionBatch(np.zeros((count, 0), np.float32), np.zeros((count, 1), np.int32))
                for each, count in counts.items()
            }
        )
    return result


@pytest.mark.parametrize(
    ("make", "ticks"),
    [(lambda: Crowd({"a": (0, 2, 0.0), "b": (0, 2, 0.0)}), 2), (lambda: Counting(target=2, masks=""), 2)],
    ids=["parallel", "by turns"],
)
def test_every_episode_of_every_instance_gets_its_own_values(make, ticks):
    envs = [make(), make()]
    group = group_of(*envs)
    told(group, {"mass": UNIFORM, "gravity": 9.5})
    play(group, ticks)
    heard = [options for env in envs for options in env.options]
    assert [len(env.options) for env in envs] == [2, 2], "one episode is over, the next has begun"
    assert all(options["gravity"] == 9.5 and 2 <= options["mass"] < 3 for options in heard)
    assert len({options["mass"] for options in heard}) == 4


def test_a_change_applies_from_the_next_episode():
    env = Crowd({"a": (0, 2, 0.0), "b": (0, 2, 0.0)})
    group = group_of(env)
    parameters = told(group, {"p": 1.0})
    play(group, 1)
    parameters.receive(EnvironmentParameters(1, {"p": 2.0}))
    assert env.options == [{"p": 1.0}]
    assert parameters.begun.tolist() == [0]
    play(group, 2)
    assert env.options[1:] == [{"p": 2.0}] * 2
    assert parameters.begun.tolist() == [1]

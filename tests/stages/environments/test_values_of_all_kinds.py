"""Observations outside of their space are named with instance or agent, whenever they come, by every kind."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from headrace.queues.messages import ActionBatch
from headrace.stages.environments.gymnasium.group import GymnasiumGroup
from headrace.stages.environments.gymnasium.singles import vectorise
from headrace.stages.environments.pettingzoo.group import PettingZooGroup
from headrace.stages.environments.pettingzoo.instances import instance_of
from headrace.stages.errors import BrokenEnvironmentError

GEAR = spaces.Dict({"gear": spaces.Discrete(4), "speed": spaces.Box(-1, 1, (2,))})


def seen(gear, speed):
    return {"gear": np.int64(gear), "speed": np.array([0, speed], np.float32)}


class Odd(gymnasium.Env):
    """Observes what is of its space but for one time; its episodes have three steps, the last one's observation is 3.

    Args:
        when: the step, counted over all episodes (0: the first reset), whose observation is `odd`; None: never.
        odd: gear and speed there.
    """

    observation_space, action_space = GEAR, spaces.Discrete(2)

    def __init__(self, when=None, odd=(4, 0.0)):
        self.when, self.odd, self.count, self.t = when, odd, -1, 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.look(), {}

    def step(self, action):
        self.t += 1
        return self.look(), 0.0, self.t == 3, False, {}

    def look(self):
        self.count += 1
        return seen(*(self.odd if self.count == self.when else (self.t, 0.5)))


class OddParallel:
    """The same of two agents, of which the second one is odd."""

    render_mode, possible_agents = None, ["a", "b"]

    def __init__(self, when=None, odd=(4, 0.0)):
        self.envs = {"a": Odd(), "b": Odd(when, odd)}
        self.agents = []

    def observation_space(self, agent):
        return GEAR

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents = ["a", "b"]
        return {agent: env.reset()[0] for agent, env in self.envs.items()}, {agent: {} for agent in "ab"}

    def step(self, actions):
        told = {agent: env.step(0) for agent, env in self.envs.items()}
        over = told["a"][2]
        self.agents = [] if over else self.agents
        columns = [{agent: each[i] for agent, each in told.items()} for i in range(4)]
        return *columns, {agent: {} for agent in "ab"}


def _same(env):
    return env


def gymnasium_group(mode):
    def make(when, odd):
        envs = [Odd(), Odd(when, odd), Odd()]
        left = iter(envs[1:])
        if mode is None:
            return GymnasiumGroup(vectorise(envs[0], lambda: next(left), 3, "Env"), "B", "Env")
        vector = SyncVectorEnv([partial(_same, env) for env in envs], autoreset_mode=mode)
        return GymnasiumGroup(vector, "B", "Env")

    return make


def zoo_group(when, odd):
    return PettingZooGroup([instance_of(env, "Env") for env in (OddParallel(), OddParallel(when, odd))], "B", "Env")


KINDS = {
    "gymnasium": (gymnasium_group(None), "Env, instance 1"),
    "same step": (gymnasium_group(AutoresetMode.SAME_STEP), "Env, instance 1"),
    "next step": (gymnasium_group(AutoresetMode.NEXT_STEP), "Env, instance 1"),
    "disabled": (gymnasium_group(AutoresetMode.DISABLED), "Env, instance 1"),
    "parallel": (zoo_group, "Env: agent 'b' of B in instance 1"),
}
TIMES = {"reset": 0, "a step": 2, "an episode's end": 3, "an episode's begin": 4, "the second end": 7}


def play(group):
    result = group.reset(0)
    for _ in range(10):
        counts = {behavior_id: len(steps.agent_ids) - steps.ended for behavior_id, steps in result.steps.items()}
        result = group.step(
            {
                behavior_id: ActionBatch(np.zeros((count, 0), np.float32), np.zeros((count, 1), np.int32))
                for behavior_id, count in counts.items()
            }
        )


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gear", [4, -1])
def test_an_index_outside_of_its_space_is_an_error_with_its_instance(kind, time, gear):
    make, who = KINDS[kind]
    words = f"^{who}: the observation 'gear' is {gear}, outside its space Discrete\\(4\\); expected 0 to 3$"
    with pytest.raises(BrokenEnvironmentError, match=words):
        play(make(TIMES[time], (gear, 0.0)))


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_the_space_cause_no_warning(kind, caplog):
    play(KINDS[kind][0](None, (0, 0.0)))
    assert not caplog.messages

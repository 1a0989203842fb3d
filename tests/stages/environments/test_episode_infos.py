"""What environments say in the infos of ended episodes, by their own vectorisation and by hand."""

import logging
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from small_zoo import Crowd

from headrace.config import RoleSettings
from headrace.queues.messages import ActionBatch
from headrace.stages.environments.episode_infos import EpisodeInfos
from headrace.stages.environments.gymnasium.group import GymnasiumGroup
from headrace.stages.environments.pettingzoo.group import PettingZooGroup
from headrace.stages.environments.pettingzoo.instances import instance_of
from headrace.stages.environments.protocol import StatisticValues

BOTH = np.array([0, 1])
RATE = "Environment/Success Rate"


class Walk(gymnasium.Env):
    """Ends after `length` steps; says at each step how far it has come, and at the end whether that was far enough."""

    observation_space: spaces.Space[Any] = spaces.Box(-1, 1, (1,))
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def __init__(self, length):
        self.length, self.distance = length, 0

    def reset(self, *, seed=None, options=None):
        self.distance = 0
        return np.zeros(1, np.float32), {"distance": -1.0}

    def step(self, action):
        self.distance += 1
        over = self.distance == self.length
        info = {"distance": float(self.distance), "mood": "good"}
        return np.zeros(1, np.float32), 1.0, over, False, {**info, "is_success": self.length > 2} if over else info


def statistics_of(group, ticks):
    """The statistics of each tick that has any, with all agents doing the same."""
    result, found = group.reset(0), []
    for _ in range(ticks):
        actions = {}
        for behavior_id, steps in result.steps.items():
            count = len(steps.agent_ids) - steps.ended
            actions[behavior_id] = ActionBatch(np.empty((count, 0), np.float32), np.zeros((count, 1), np.int32))
        result = group.step(actions)
        found.append(result.behavior_statistics or result.statistics)
    return [dict(each) for each in found if each]


@pytest.mark.parametrize("mode", AutoresetMode)
def test_gymnasium_s_final_infos_are_reported_in_each_autoreset_mode(mode):
    envs = SyncVectorEnv([partial(Walk, 2), partial(Walk, 3)], autoreset_mode=mode)
    group = GymnasiumGroup(envs, "B", "Walk", info_keys=("distance",))
    found = statistics_of(group, 3)
    assert found == [
        {"Environment/distance": StatisticValues((2.0,)), RATE: StatisticValues((0.0,))},
        {"Environment/distance": StatisticValues((3.0,)), RATE: StatisticValues((1.0,))},
    ]


def test_pettingzoo_s_final_infos_are_reported_by_behaviour():
    script = {"red_0": (0, 1, 0.0), "blue_0": (0, 2, 0.0), "blue_1": (0, 2, 0.0)}
    roles = {"red_*": RoleSettings(behavior="Red", team=0), "blue_*": RoleSettings(behavior="Blue", team=1)}
    env = Crowd(script, infos={"hits": np.int64(4), "success": True})
    group = PettingZooGroup([instance_of(env, "Zoo")], "B", "Zoo", roles, info_keys=("hits",))
    assert statistics_of(group, 2) == [
        {"Red": {"Environment/hits": StatisticValues((4.0,)), RATE: StatisticValues((1.0,))}},
        {"Blue": {"Environment/hits": StatisticValues((4.0, 4.0)), RATE: StatisticValues((1.0, 1.0))}},
    ]


def test_instances_that_lack_a_key_are_left_out_by_its_mask():
    infos = {"score": np.array([3.0, 0.0]), "_score": np.array([True, False])}
    assert EpisodeInfos(("score",), "E").of_vector(infos, BOTH) == {"Environment/score": StatisticValues((3.0,))}


def test_an_array_of_infos_is_read():
    infos = np.array([{"score": 3}, None], object)
    assert EpisodeInfos(("score",), "E").of_vector(infos, BOTH) == {"Environment/score": StatisticValues((3.0,))}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([True, False]), (1.0, 0.0)),
        (np.array([[2.5], [1.5]]), (2.5, 1.5)),
        (np.array(["a", "b"]), None),
        (np.array([{"a": 1}, [1, 2]], object), None),
    ],
)
def test_values_that_are_not_numbers_are_ignored(values, expected):
    found = EpisodeInfos(("x",), "E").of_vector({"x": values}, BOTH)
    assert found == ({} if expected is None else {"Environment/x": StatisticValues(expected)})


def test_is_success_overrides_success():
    found = EpisodeInfos((), "E").of_episodes([{"success": False, "is_success": True}])
    assert found == {RATE: StatisticValues((1.0,))}


def test_a_key_that_no_episode_had_is_named_once(caplog):
    caplog.set_level(logging.WARNING, "headrace.stages")
    infos = EpisodeInfos(("score", "mood", "pace"), "Walk")
    for _ in range(30):
        infos.of_episodes([{"score": 1.0, "mood": "good"}])
    assert [record.getMessage() for record in caplog.records] == [
        "Walk: environment.info_keys: no numeric value for 'mood' or 'pace' in the infos at the end of the first 10 "
        "episodes (found: mood, score)"
    ]

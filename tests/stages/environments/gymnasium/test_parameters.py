"""Environment parameters reach Gymnasium environments as reset options, however these are vectorised."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from environment_requests import group_of
from fakes import at_once
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from headrace.config import EnvironmentSettings
from headrace.queues.messages import ActionBatch
from headrace.stages.environments.gymnasium.group import GymnasiumGroup
from headrace.stages.environments.parameters import EnvironmentParameters, EpisodeParameters, connect_parameters

MODES = list(AutoresetMode)
LENGTH = 3
UNIFORM = {"sampler_type": "uniform", "sampler_parameters": {}}


class Notified(gymnasium.Env):
    """Shows the parameter `p` that its episode was begun with, and the step; episodes take three steps."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.options, self.t = options, 0
        return self._look(), {}

    def step(self, action):
        self.t += 1
        return self._look(), 1.0, self.t == LENGTH, False, {}

    def _look(self):
        return np.array([(self.options or {}).get("p", -1.0), self.t])


class ToldVector(VectorEnv):
    """The same as a vector environment that restarts no episode by itself."""

    num_envs = 3
    single_observation_space = Notified.observation_space
    single_action_space = Notified.action_space

    def __init__(self, mode=AutoresetMode.DISABLED):
        self.metadata = {"autoreset_mode": mode}
        self.observation_space = batch_space(self.single_observation_space, 3)
        self.action_space = batch_space(self.single_action_space, 3)
        self.told = []

    def reset(self, *, seed=None, options=None):
        options = dict(options or {})
        which = options.pop("reset_mask", np.ones(3, np.bool_))
        self.told.append({name: values.tolist() for name, values in options.items()})
        if which.all():
            self.p, self.t = options["p"], np.array([0, 1, 2])  # out of step, so that they end one by one
        self.p = np.where(which, options["p"], self.p)
        self.t[which & (self.t == LENGTH)] = 0
        return self._look(), {}

    def step(self, actions):
        self.t = np.where(self.t == LENGTH, 0, self.t + 1)
        return self._look(), np.ones(3), self.t == LENGTH, np.zeros(3, np.bool_), {}

    def _look(self):
        return np.stack([self.p, self.t], axis=1)


class Play:
    """A group with parameters, stepped on; what its instances' episodes were begun with."""

    def __init__(self, envs, plain):
        self.parameters = EpisodeParameters()
        self.group = GymnasiumGroup(envs, "Walker", "the environment")
        self.change(plain)
        connect_parameters(self.group, self.parameters)
        self.reset()

    def change(self, plain):
        self.parameters.receive(EnvironmentParameters(self.parameters.generation + 1, plain))

    def reset(self, seed=0):
        self.parameters.reseed(seed, 0)
        self.steps = self.group.reset(seed).steps["Walker"]

    def step(self, times=1):
        for _ in range(times):
            count = len(self.steps.agent_ids) - self.steps.ended
            nothing = ActionBatch(np.zeros((count, 0), np.float32), np.zeros((count, 1), np.int32))
            self.steps = self.group.step({"Walker": nothing}).steps["Walker"]

    @property
    def deciding(self):
        """What each instance that decides was told at the beginning of its episode."""
        values = self.steps.observations[0][self.steps.ended :, 0]
        return dict(zip(self.steps.env_ids[self.steps.ended :].tolist(), values.tolist(), strict=True))


def sync(mode, num_envs=2):
    return SyncVectorEnv([Notified] * num_envs, autoreset_mode=mode)


@pytest.mark.parametrize("mode", MODES)
def test_single_environments_receive_parameters_at_each_episode(mode):
    play = Play(sync(mode), {"p": UNIFORM})
    episodes = [play.deciding]
    for _ in range(3):
        before = play.deciding
        play.step(LENGTH - 1)
        assert play.deciding == before, "it holds for the whole episode"
        play.step(1)
        episodes.append(play.deciding)
    values = [value for told in episodes for value in told.values()]
    assert len(set(values)) == 8
    assert all(0 <= value < 1 for value in values)


@pytest.mark.parametrize("mode", MODES)
def test_a_lesson_starts_with_each_instance_s_next_episode(mode):
    play = Play(sync(mode), {"p": 1.0})
    play.step()
    play.change({"p": 2.0})
    play.step(LENGTH - 2)
    assert set(play.deciding.values()) == {1.0}
    assert play.parameters.begun.tolist() == [1, 1]
    play.step()
    assert set(play.deciding.values()) == {2.0}
    assert play.parameters.begun.tolist() == [2, 2]


@pytest.mark.parametrize("mode", MODES)
def test_a_reset_starts_a_lesson_immediately_and_the_seed_determines_its_values(mode):
    play = Play(sync(mode), {"p": UNIFORM})
    play.step(LENGTH)
    play.change({"p": UNIFORM, "q": 1.0})
    play.reset(seed=5)
    assert play.parameters.begun.tolist() == [2, 2]
    first = play.deciding
    play.step(2 * LENGTH)
    play.reset(seed=5)
    assert play.deciding == first


def test_a_vector_environment_with_its_resets_left_to_the_group_receives_parameters_at_each_episode():
    envs = ToldVector()
    play = Play(envs, {"p": UNIFORM})
    first = play.deciding
    play.step()
    second = play.deciding
    assert second[2] != first[2]
    assert (second[0], second[1]) == (first[0], first[1])
    assert envs.told[1]["p"] == pytest.approx([second[i] for i in range(3)]), "the others' are what they were"
    play.change({"p": 8.0})
    play.step()
    assert play.deciding == {0: first[0], 1: 8.0, 2: second[2]}
    assert play.parameters.begun.tolist() == [1, 2, 1]


def test_a_vector_environment_with_autoreset_receives_parameters_only_at_resets_with_a_warning(caplog):
    play = Play(ToldVector(AutoresetMode.NEXT_STEP), {"p": 1.0})
    assert "starts episodes itself (autoreset mode NEXT_STEP)" in caplog.text
    play.change({"p": 2.0})
    play.step(2 * LENGTH)
    assert set(play.deciding.values()) == {1.0}
    assert play.parameters.begun.tolist() == [1, 1, 1]
    play.reset()
    assert set(play.deciding.values()) == {2.0}
    assert play.parameters.begun.tolist() == [2, 2, 2]


def test_environments_in_processes_get_no_parameters_with_a_warning(caplog):
    envs = AsyncVectorEnv([Notified])
    group = GymnasiumGroup(envs, "Walker", "the environment")
    try:
        parameters = EpisodeParameters()
        parameters.receive(EnvironmentParameters(0, {"p": 1.0}))
        connect_parameters(group, parameters)
        assert "use vectorization_mode: sync" in caplog.text
        group.reset(0)
    finally:
        group.close()


def test_environments_with_parameters_are_single_if_possible(caplog):
    settings = EnvironmentSettings(kind="gymnasium", id="CartPole-v1")
    groups = [group_of(settings, "CartPole", 2, environment_parameters=each) for each in (None, {"low": 0.0})]
    parameters = EpisodeParameters()
    # CartPole's own options: bounds of its first state.
    parameters.receive(EnvironmentParameters(0, {"low": 0.04, "high": 0.04}))
    connect_parameters(groups[0], parameters)
    assert "starts episodes itself" in caplog.text, "the vectorised implementation"
    caplog.clear()
    connect_parameters(groups[1], parameters)
    assert not caplog.text
    steps = at_once(groups[1].reset(0)).steps["CartPole"]
    assert steps.observations[0] == pytest.approx(np.full((2, 4), 0.04))
    for group in groups:
        group.close()

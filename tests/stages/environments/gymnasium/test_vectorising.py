from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from headrace.config import EnvironmentSettings
from headrace.stages.environments.factory import chain_wrappers
from headrace.stages.environments.gymnasium.singles import SingleEnvs, make_vector, vectorise
from headrace.stages.errors import BrokenEnvironmentError, StageError


class OneStepEnv(gymnasium.Env):
    """Ends at every step, and returns the same array each time."""

    observation_space = spaces.Box(0, 1, (1,))
    action_space = spaces.Discrete(2)

    def __init__(self):
        self.array = np.zeros(1, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.array[0] = 0
        return self.array, {}

    def step(self, action):
        self.array[0] = 1
        return self.array, 0.0, True, False, {}


def test_options_reach_each_single_environment():
    envs = make_vector("Pendulum-v1", 2, {"g": 3.5}, "Pendulum")

    assert isinstance(envs, SingleEnvs)
    assert [env.unwrapped.g for env in envs.envs] == [3.5, 3.5]  # type: ignore[attr-defined]
    envs.close()


def test_an_id_may_name_the_module_that_registers_it(tmp_path, monkeypatch):
    (tmp_path / "registering_here.py").write_text(
        "import gymnasium\ngymnasium.register('Registered-v0', 'gymnasium.envs.classic_control:PendulumEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(gymnasium.envs.registration, "registry", {**gymnasium.registry})

    envs = make_vector("registering_here:Registered-v0", 2, {}, "Registered")

    assert envs.num_envs == 2
    envs.close()


def test_a_vector_environment_of_another_size_is_refused_and_closed():
    made = SyncVectorEnv([OneStepEnv, OneStepEnv, OneStepEnv])

    with pytest.raises(StageError, match="of 3 instances, but 2 are needed; add an argument num_envs"):
        vectorise(made, OneStepEnv, 2, "Env")
    assert made.closed


def test_the_same_environment_twice_is_refused():
    env = OneStepEnv()
    with pytest.raises(StageError, match="Env returned the same environment twice"):
        vectorise(env, lambda: env, 2, "Env")


def test_a_factory_that_fails_later_is_reported():
    def fail():
        raise OSError("port 5005 is taken")

    with pytest.raises(BrokenEnvironmentError, match="Env raised OSError: port 5005 is taken"):
        vectorise(OneStepEnv(), fail, 2, "Env")


class ScalingWrapper(gymnasium.RewardWrapper):
    def __init__(self, env, scale):
        super().__init__(env)
        self.scale = scale

    def reward(self, reward):
        return reward * self.scale


class ShiftingWrapper(ScalingWrapper):
    def reward(self, reward):
        return reward + self.scale


def wrap_of(*wrappers):
    asked = [{"use": f"{__name__}:{wrapper.__name__}", "with": arguments} for wrapper, arguments in wrappers]
    settings = EnvironmentSettings(kind="gymnasium", id="Env", wrappers=asked)
    return chain_wrappers(settings, None, "Env", lambda env: isinstance(env, gymnasium.Env), "a gymnasium.Env")


def five(env):
    return 5


def test_wrappers_wrap_each_single_environment_the_innermost_first():
    wrap = wrap_of((ShiftingWrapper, {"scale": 3}), (ScalingWrapper, {"scale": 10}))
    made = {
        "registered": make_vector("CartPole-v1", 2, {}, "CartPole", wrap),
        "factory": vectorise(gymnasium.make("CartPole-v1"), lambda: gymnasium.make("CartPole-v1"), 2, "F", wrap),
    }

    for envs in made.values():
        assert isinstance(envs, SingleEnvs)  # though CartPole has a vectorised implementation
        envs.reset(seed=0)
        assert list(envs.step(np.zeros(2, np.int64))[1]) == [40, 40]
        envs.close()


def test_a_wrapper_that_raises_is_reported_with_its_arguments():
    with pytest.raises(
        StageError, match=r"^Env: environment wrapper '.*:ScalingWrapper' with \{'size': 1\} raised TypeError: .*'size'"
    ):
        make_vector("CartPole-v1", 2, {}, "Env", wrap_of((ScalingWrapper, {"size": 1})))


def test_a_wrapper_that_gives_no_environment_is_reported():
    with pytest.raises(StageError, match=r"wrapper '.*:five' returned an int; expected a gymnasium\.Env"):
        make_vector("CartPole-v1", 2, {}, "Env", wrap_of((five, {})))


def test_wrappers_of_vectorised_implementations_are_refused():
    wrap = wrap_of((ScalingWrapper, {"scale": 1}))
    with pytest.raises(StageError, match="and vectorization_mode 'vector_entry_point' has no single environments"):
        make_vector("CartPole-v1", 2, {"vectorization_mode": "vector_entry_point"}, "Env", wrap)
    made = SyncVectorEnv([OneStepEnv, OneStepEnv])
    with pytest.raises(
        StageError,
        match="returned a vector environment, but environment.wrappers apply to single environments; wrap the "
        "environments inside it",
    ):
        vectorise(made, OneStepEnv, 2, "Env", wrap)
    assert made.closed


def test_an_environment_with_a_window_is_stepped_singly_and_draws(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    envs = make_vector("CartPole-v1", 1, {"render_mode": "human"}, "Env")
    assert isinstance(envs, SingleEnvs), "the vectorised one draws nothing, and says nothing"
    envs.reset(seed=1)
    window: Any = envs.envs[0].unwrapped
    assert window.screen.get_size() == (600, 400)
    envs.close()


def test_a_vectorised_implementation_without_a_window_is_refused_with_one():
    options = {"render_mode": "human", "vectorization_mode": "vector_entry_point"}
    with pytest.raises(StageError, match="CartPole-v1 has no window, so render_mode human can't be combined with"):
        make_vector("CartPole-v1", 2, options, "Env")


def test_atari_without_its_package_is_reported_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    monkeypatch.setattr(gymnasium.envs.registration, "registry", {})
    monkeypatch.setattr(gymnasium, "registry", {})

    with pytest.raises(StageError, match=r"^Env belongs to the package ale-py, .*: python -m pip install ale-py$"):
        make_vector("ALE/Pong-v5", 1, {}, "Env")


@pytest.mark.lengthy
def test_atari_comes_as_stacked_grey_frames_by_its_own_vectorised_implementation():
    pytest.importorskip("ale_py")

    envs = make_vector("ALE/Pong-v5", 2, {}, "Pong")

    assert not isinstance(envs, SingleEnvs)
    assert envs.single_observation_space.shape == (4, 84, 84)
    envs.close()

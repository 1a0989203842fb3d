from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from stages.environment.vectorising import make_vector, vectorise
from stages.errors import BrokenEnvironmentError, StageError


class Reusing(gymnasium.Env):
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


def test_final_observations_survive_an_environment_that_writes_over_its_array():
    envs = vectorise(Reusing(), Reusing, 2, "Reusing")
    envs.reset()

    first, _, _, _, infos = envs.step(np.zeros(2, np.int64))

    assert [final.tolist() for final in infos["final_obs"]] == [[1], [1]]
    assert first.tolist() == [[0], [0]]


def test_options_reach_each_single_environment():
    envs = make_vector("Pendulum-v1", 2, {"g": 3.5}, "Pendulum")

    assert envs.get_attr("g") == (3.5, 3.5)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    envs.close()


def test_options_reach_a_vectorised_implementation():
    envs = make_vector("CartPole-v1", 2, {"max_episode_steps": 7}, "CartPole")

    assert not isinstance(envs, SyncVectorEnv)
    assert envs.max_episode_steps == 7


def test_an_id_may_name_the_module_that_registers_it(tmp_path, monkeypatch):
    (tmp_path / "registering_here.py").write_text(
        "import gymnasium\ngymnasium.register('Registered-v0', 'gymnasium.envs.classic_control:PendulumEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(gymnasium.envs.registration, "registry", {**gymnasium.registry})

    envs = make_vector("registering_here:Registered-v0", 2, {}, "Registered")

    assert envs.num_envs == 2
    envs.close()


def test_a_misspelt_id_is_told_with_gymnasiums_suggestion():
    with pytest.raises(StageError, match=r"^Env: Environment `CartPol` doesn't exist\. Did you mean: `CartPole`\?"):
        make_vector("CartPol-v1", 2, {}, "Env")


def test_an_option_that_the_environment_does_not_know_is_told():
    with pytest.raises(BrokenEnvironmentError, match=r"options \{'wheels': 3\} raised TypeError: .*'wheels'"):
        make_vector("Pendulum-v1", 2, {"wheels": 3}, "Env")


def test_a_vector_environment_of_another_size_is_refused_and_closed():
    made = SyncVectorEnv([Reusing, Reusing, Reusing])

    with pytest.raises(StageError, match="of 3 instances where 2 are wanted; let it take an argument num_envs"):
        vectorise(made, Reusing, 2, "Env")
    assert made.closed


def test_the_same_environment_twice_is_refused():
    env = Reusing()
    with pytest.raises(StageError, match="Env gave the same environment twice"):
        vectorise(env, lambda: env, 2, "Env")


def test_a_factory_that_fails_later_is_told():
    def fail():
        raise OSError("port 5005 is taken")

    with pytest.raises(BrokenEnvironmentError, match="making 2 of it raised OSError: port 5005 is taken"):
        vectorise(Reusing(), fail, 2, "Env")

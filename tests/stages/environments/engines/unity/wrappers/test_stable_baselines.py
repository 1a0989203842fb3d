"""Stable-Baselines3 learns from Unity through each of the environments; where it is not installed, nothing is tried."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from unity_runs import BUILD

from headrace.unity import UnityEnvironment, UnityToGymWrapper

sb3 = pytest.importorskip("stable_baselines3", reason="needs stable-baselines3")
pytestmark = pytest.mark.slow
SETTINGS = {"n_steps": 256, "batch_size": 64, "learning_rate": 1e-3, "gamma": 0.9, "device": "cpu", "seed": 1}
SOLVED = 0.9
"""Mean return of an episode of the scene `simple`, of 1.06 at most; the shortest way earns some 1."""


@pytest.fixture
def unity(tmp_path):
    """Starts programs."""
    begun = []

    def start(*arguments):
        args = [*map(str, arguments)]
        begun.append(UnityEnvironment(str(BUILD), base_port=0, additional_args=args, log_folder=str(tmp_path)))
        return begun[-1]

    yield start
    for env in begun:
        env.close()


def learned(algorithm, env, steps, policy="MlpPolicy", **settings):
    """The mean return of the last episodes."""
    model = algorithm(policy, env, **{**SETTINGS, **settings})
    model.learn(steps)
    return np.mean([episode["r"] for episode in model.ep_info_buffer])


@pytest.mark.parametrize(
    ("arguments", "options", "policy"),
    [
        (("--continuous", 1), {}, "MlpPolicy"),
        (("--branches", 2), {}, "MlpPolicy"),
        (("--branches", 2, 2), {}, "MlpPolicy"),
        (("--branches", 2, 2), {"flatten_branched": True}, "MlpPolicy"),
        (("--scene", "visual", "--branches", 2, "--visuals", 1, "--vectors", 0), {}, "MlpPolicy"),
    ],
    ids=["numbers", "a branch", "branches", "flattened", "pictures"],
)
def test_ppo_learns_through_the_gymnasium_environment(unity, arguments, options, policy):
    env = UnityToGymWrapper(unity("--agents", 1, *arguments), **options)
    assert learned(sb3.PPO, env, 5_000, policy) > SOLVED


def test_maskable_ppo_learns_and_chooses_nothing_that_is_forbidden(unity):
    """The stand-in ends with an error at a choice that it has forbidden."""
    contrib = pytest.importorskip("sb3_contrib")
    env = UnityToGymWrapper(unity("--agents", 1, "--branches", 4, 3, "--mask"))
    assert learned(contrib.MaskablePPO, env, 8_000) > SOLVED


VecEnv: Any = sb3.common.vec_env.VecEnv

"""Environments with ML-Agents' interface train unchanged."""

from __future__ import annotations

import numpy as np
from run_configs import INLINE
from runs import run_here

from headrace.pipeline.policies.export import load_acting_policy

SETTINGS = {
    "trainer_type": "ppo",
    "max_steps": 2500,
    "time_horizon": 16,
    "summary_freq": 500,
    "hyperparameters": {
        "buffer_size": 128,
        "batch_size": 32,
        "learning_rate": 1e-2,
        "learning_rate_schedule": "constant",
    },
    "network_settings": {"hidden_units": 16, "num_layers": 1},
}


def test_an_environment_with_ml_agents_interface_is_learned(tmp_path):
    plain = {
        "environment": {
            "kind": "mlagents",
            "factory": "low_level_env:GuessEnv",
            "num_envs": 3,
            "options": {"agents": 4},
        },
        "env_settings": {"seed": 3},
        "behaviors": {"Guess": {**SETTINGS, "reward_signals": {"extrinsic": {"gamma": 0.5}}}},
        "evaluation": {"every": 1000, "episodes": 12},
    }
    result = run_here({**plain, **inline()}, tmp_path, "run")
    assert result.behaviors["Guess"].recent_return > 2.0, "of 3 that can be had, and 0 by guessing"
    policy = load_acting_policy(result.behaviors["Guess"].export)
    masks = np.array([[True, True, False]] * 2)
    seen = np.array([[-1.0], [1.0]], np.float32)
    decision = policy.act((seen,), masks, np.random.default_rng(0), deterministic=True)
    assert decision.actions.discrete.tolist() == [[0], [1]]


def inline():
    kinds = {key.split("__")[2]: {"kind": value} for key, value in INLINE.items()}
    return {"pipeline": {"hosts": kinds}}

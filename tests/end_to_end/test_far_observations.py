"""Observations whose mean is far from 0, as prices and clocks have it, are learned from as those around 0 are.

The right action is which of two observations it is; a return of 8 is the best, and 4 comes by chance.
"""

from __future__ import annotations

from typing import Any

import pytest
from prices import Price
from run_configs import INLINE, changed
from runs import run_here

from headrace import load_policy


def run_of(kind: str, options: dict[str, Any], **changes: Any) -> Any:
    plain = {
        "environment": {
            "kind": kind,
            "factory": "prices:Price" if kind == "gymnasium" else "prices:Prices",
            "options": options,
            "num_envs": 16,
            "behavior": "B",
        },
        "behaviors": {
            "B": {
                "trainer_type": "ppo",
                "hyperparameters": {
                    "buffer_size": 512,
                    "batch_size": 128,
                    "learning_rate": 3e-3,
                    "learning_rate_schedule": "constant",
                },
                "network_settings": {"hidden_units": 32, "num_layers": 1, "normalize": True},
                "max_steps": 8_000,
            }
        },
        "env_settings": {"seed": 1},
    }
    return changed(plain, {**INLINE, **changes})


def chosen(folder: Any, options: dict[str, Any]) -> list[int]:
    policy, price = load_policy(folder), Price(**options)
    return [int(policy.predict(price.seen(s))[0]) for s in (0, 1)]


FAR: dict[str, dict[str, Any]] = {
    "a price": {"offset": 20_000.0},
    "a clock": {"offset": 1.7e9, "scale": 60.0, "dtype": "float64"},
}


@pytest.mark.lengthy
@pytest.mark.parametrize("options", FAR.values(), ids=[*FAR])
def test_observations_far_from_zero_are_learned_from(options, tmp_path):
    result = run_here(run_of("gymnasium", options), tmp_path, "far")
    assert chosen(result.folder, options) == [0, 1]


@pytest.mark.lengthy
def test_a_resumed_run_of_many_agents_keeps_its_normaliser(tmp_path):
    options = FAR["a clock"]
    run_here(run_of("pettingzoo", options), tmp_path, "far")
    again = run_of("pettingzoo", options, behaviors__B__max_steps=9_000)
    result = run_here(again, tmp_path, "far", resume=True)
    assert result.behaviors["B"].step >= 9_000
    assert chosen(result.folder, options) == [0, 1]


@pytest.mark.lengthy
def test_sac_keeps_float64_in_its_memory_and_over_a_resume(tmp_path):
    options = FAR["a clock"]
    changes: dict[str, Any] = {
        "environment__num_envs": 4,
        "behaviors__B__trainer_type": "sac",
        "behaviors__B__hyperparameters": {
            "buffer_size": 3000,
            "batch_size": 64,
            "buffer_init_steps": 300,
            "learning_rate": 3e-3,
            "init_entcoef": 0.1,
            "steps_per_update": 8,
            "save_replay_buffer": True,
        },
    }
    run_here(run_of("gymnasium", options, **changes, behaviors__B__max_steps=1200), tmp_path, "far")
    result = run_here(
        run_of("gymnasium", options, **changes, behaviors__B__max_steps=1500), tmp_path, "far", resume=True
    )
    assert chosen(result.folder, options) == [0, 1]

"""Whole runs on what ML-Agents' own C# package said: every agent gets its action, and the run ends with the recording."""

from __future__ import annotations

import pytest
from recorded_unity import NAMES, build
from run_configs import INLINE, changed
from runs import run_here
from unity_runs import free_port

SHORT = ("flick5", "visraw")
PPO = {
    "trainer_type": "ppo",
    "max_steps": 10**6,
    "summary_freq": 100,
    "time_horizon": 16,
    "hyperparameters": {"buffer_size": 64, "batch_size": 32, "num_epoch": 1},
    "network_settings": {"hidden_units": 8, "num_layers": 1},
}
POCA = {**PPO, "trainer_type": "poca"}
SELF_PLAY = {"self_play": {"save_steps": 100, "team_change": 300, "swap_steps": 50, "window": 3}}
SETTINGS = {"duel": PPO | SELF_PLAY, "duelpoca": POCA | SELF_PLAY, "ginter": POCA, "group": POCA}


@pytest.mark.lengthy
@pytest.mark.parametrize(
    "name", [name if name in SHORT else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_a_run_learns_from_a_recording_to_its_end(tmp_path, name):
    plain = changed(
        {
            "env_settings": {"env_path": str(build(name, tmp_path)), "base_port": free_port(), "timeout_wait": 60},
            "default_settings": SETTINGS.get(name, PPO),
        },
        INLINE,
    )
    result = run_here(plain, tmp_path, name)
    assert result.behaviors
    assert all(behavior.step > 0 for behavior in result.behaviors.values())

"""What a file that names only an environment and a trainer learns, and what its run tells of the defaults."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from runs import run_here

from headrace import evaluate, load_policy, nash_conv

BARS = {
    "CartPole-v1": ("ppo", 100_000, 475.0),
    "Acrobot-v1": ("ppo", 200_000, -100.0),
    "LunarLander-v3": ("ppo", 500_000, 150.0),
    "Pendulum-v1": ("ppo", 500_000, -300.0),
    "sac Pendulum-v1": ("sac", 10_000, -200.0),
}
"""By task: the trainer, the steps, and the mean return that the final policy must reach in 30 episodes."""


def bare(environment_id: str, trainer: str, steps: int, seed: int) -> dict[str, Any]:
    """A run's configuration that says nothing about learning."""
    return {
        "environment": {"kind": "gymnasium", "id": environment_id},
        "behaviors": {"Agent": {"trainer_type": trainer, "max_steps": steps}},
        "env_settings": {"seed": seed},
        "pipeline": {"hosts": {"actors": {"kind": "inline"}, "learners": {"kind": "inline"}}},
    }


def test_a_run_tells_its_defaults_once_and_writes_them_to_its_folder(tmp_path, caplog):
    caplog.set_level("INFO")
    run_here(bare("CartPole-v1", "ppo", 100, 0), tmp_path, "bare")
    told = [message for message in caplog.messages if "unlike ML-Agents'" in message]
    written = yaml.safe_load((tmp_path / "bare" / "configuration.yaml").read_text(encoding="utf-8"))
    assert len(told) == 1
    assert "buffer_size 2048" in told[0]
    assert written["behaviors"]["Agent"]["hyperparameters"]["buffer_size"] == 2048


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("task", BARS)
def test_an_environment_and_a_trainer_are_enough_to_learn(tmp_path, task, seed):
    environment_id = task.rpartition(" ")[2]
    if environment_id.startswith("Lunar"):
        pytest.importorskip("Box2D", reason="needs the extra `box2d`")
    trainer, steps, bar = BARS[task]
    result = run_here(bare(environment_id, trainer, steps, seed), tmp_path, "bare")
    assert evaluate(result, environment_id, 30, seed=10_000 + seed).mean >= bar


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_preset_of_leagues_is_enough_to_come_near_an_equilibrium(tmp_path, seed):
    pytest.importorskip("pyspiel", reason="needs the extra `openspiel`")
    plain = {
        "environment": {"kind": "open_spiel", "game": "kuhn_poker", "num_envs": 64},
        "behaviors": {
            "Kuhn": {
                "trainer_type": "ppo",
                "network_settings": {"hidden_units": 64, "num_layers": 2},
                "max_steps": 1_000_000,
                "league": "alphastar",
            }
        },
        "env_settings": {"seed": seed},
    }
    folder = run_here(plain, tmp_path, "kuhn").folder
    assert nash_conv(folder, "kuhn_poker") <= 0.15
    assert nash_conv(load_policy(folder, mixture=True), "kuhn_poker") <= 0.10

"""A game of OpenSpiel from end to end: learned by self-play, the same twice, scored, evaluated, and asked afterwards."""

from __future__ import annotations

import json

import pytest
from run_configs import INLINE, changed
from runs import run_here

from headrace import load_policy, nash_conv

pytest.importorskip("pyspiel", reason="python -m pip install 'headrace[openspiel]'")
pytestmark = pytest.mark.lengthy


def kuhn(**changes):
    plain = {
        "environment": {"kind": "open_spiel", "game": "kuhn_poker", "num_envs": 8},
        "env_settings": {"seed": 3},
        "behaviors": {
            "Kuhn": {
                "trainer_type": "ppo",
                "max_steps": 1000,
                "time_horizon": 8,
                "summary_freq": 500,
                "checkpoint_interval": 500,
                "hyperparameters": {"buffer_size": 256, "batch_size": 64, "num_epoch": 2, "learning_rate": 3e-3},
                "network_settings": {"hidden_units": 8, "num_layers": 1},
                "self_play": {"save_steps": 200, "team_change": 400, "swap_steps": 100, "window": 4},
            }
        },
    }
    return changed(changed(plain, INLINE), changes)


@pytest.mark.slow
def test_kuhn_poker_is_learned_and_is_the_same_twice(tmp_path):
    values = []
    for run_id in ("one", "two"):
        result = run_here(
            kuhn(pipeline__deterministic=True, evaluation={"every": 500, "episodes": 20}), tmp_path, run_id
        )
        assert result.behaviors["Kuhn"].step >= 1000
        values.append(nash_conv(result, "kuhn_poker"))
    assert values[0] == values[1]
    mixture = nash_conv(sorted((tmp_path / "one" / "Kuhn").glob("Kuhn-[0-9]*.pt")), "kuhn_poker")
    assert 0 < mixture < 2
    policy = load_policy(tmp_path / "one")
    assert policy.predict([0.0] * 11, mask=[False, True]).action == 1


@pytest.mark.slow
def test_each_player_may_have_a_behaviour_of_its_own(tmp_path):
    plain = kuhn(environment__behaviors={"player_0": "First", "*": "Second"})
    block = plain["behaviors"].pop("Kuhn")
    plain["behaviors"] = {"First": block, "Second": block}
    result = run_here(plain, tmp_path, "run")
    results = json.loads((result.folder / "First" / "league.json").read_text())["results"]
    assert {entry["against"] for entry in results} == {"Second"}
    each = {0: result.folder / "First", 1: result.folder / "Second"}
    assert 0 < nash_conv(each, "kuhn_poker") < 4

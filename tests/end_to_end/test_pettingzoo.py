"""PettingZoo environments from end to end: by turns and at once, sides that differ, agents that die and join."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from run_configs import INLINE, changed
from runs import run_here

from headrace.pipeline.common.errors import RunError, RunFailed
from headrace.pipeline.policies.export import load_acting_policy

ROOT = Path(__file__).parents[2]
PPO = {
    "trainer_type": "ppo",
    "max_steps": 1200,
    "time_horizon": 16,
    "summary_freq": 400,
    "checkpoint_interval": 400,
    "hyperparameters": {"buffer_size": 120, "batch_size": 60, "num_epoch": 2, "learning_rate": 3e-3},
    "network_settings": {"hidden_units": 8, "num_layers": 1},
}
PLAYS = {"save_steps": 200, "team_change": 400, "swap_steps": 100, "window": 4}


def counting(**changes):
    plain = {
        "environment": {"kind": "pettingzoo", "factory": "small_zoo:Counting", "num_envs": 8},
        "env_settings": {"seed": 11},
        "behaviors": {"Count": {**PPO, "self_play": dict(PLAYS)}},
    }
    return changed(changed(plain, INLINE), changes)


SHORT = {**PPO, "max_steps": 600, "summary_freq": 200, "checkpoint_interval": 200}


def crowd(**changes):
    """Two rooks from the start, of which one dies early; a pawn that joins later."""
    script = {"rook_0": [0, 9, 0.1], "rook_1": [0, 3, 0.1], "pawn_0": [4, 9, -0.1]}
    plain = {
        "environment": {
            "kind": "pettingzoo",
            "factory": "small_zoo:Crowd",
            "num_envs": 4,
            "options": {"script": script},
            "behaviors": {"rook_*": "Rook", "pawn_[0-9]": {"behavior": "Pawn"}},
        },
        "env_settings": {"seed": 11},
        "behaviors": {"Rook": dict(SHORT), "Pawn": dict(SHORT)},
    }
    return changed(changed(plain, INLINE), changes)


def league(folder, behavior):
    return json.loads((folder / behavior / "league.json").read_text())


def test_two_players_of_one_behaviour_play_against_each_other_in_turns(tmp_path):
    plain = counting(behaviors__Count__max_steps=3000, behaviors__Count__hyperparameters__learning_rate=1e-2)
    result = run_here(plain, tmp_path, "run")
    assert result.behaviors["Count"].step >= 3000
    assert sum(entry["won"] + entry["lost"] for entry in league(result.folder, "Count")["results"]) > 300
    policy = load_acting_policy(result.behaviors["Count"].export)
    seen = np.array([[count, seat] for count in (0, 2) for seat in (0, 1)], np.float32)
    moves = policy.act((seen,), np.ones((4, 2), np.bool_), np.random.default_rng(0), deterministic=True).actions
    # To count to 4 by ones and twos, say 1, so that 3 are left; and at 2, say 4.
    assert moves.discrete[:, 0].tolist() == [0, 0, 1, 1]


def test_mates_that_act_in_turns_learn_by_their_groups_reward(tmp_path):
    plain = {
        "environment": {
            "kind": "pettingzoo",
            "factory": "small_zoo:Favour",
            "num_envs": 8,
            "behaviors": {"*": {"group": True}},
        },
        "env_settings": {"seed": 11},
        "behaviors": {"Mate": {**PPO, "trainer_type": "poca", "max_steps": 2000}},
    }
    plain = changed(plain, {"behaviors__Mate__hyperparameters__learning_rate": 1e-2})
    result = run_here(changed(plain, INLINE), tmp_path, "run")
    policy = load_acting_policy(result.behaviors["Mate"].export)
    giver = np.array([[1.0]], np.float32)
    assert policy.act((giver,), None, np.random.default_rng(0), deterministic=True).actions.discrete.tolist() == [[1]]


def test_sides_with_their_own_behaviours_learn_in_turn(tmp_path):
    roles = {"*_0": {"behavior": "First", "team": 0}, "*": {"behavior": "Second", "team": 1}}
    sides = {"First": {**SHORT, "self_play": dict(PLAYS)}, "Second": {**SHORT, "self_play": dict(PLAYS)}}
    plain = counting(environment__behaviors=roles)
    plain["behaviors"] = sides
    result = run_here(plain, tmp_path, "run")
    assert all(result.behaviors[name].step >= 600 for name in sides)
    assert {entry["against"] for entry in league(result.folder, "First")["results"]} == {"Second"}


def test_agents_that_die_and_join_are_learned_from(tmp_path):
    result = run_here(crowd(), tmp_path, "run")
    rook, pawn = (result.behaviors[name] for name in ("Rook", "Pawn"))
    assert rook.step >= 600
    assert pawn.step >= 600
    # 0.9 for the one that lives through 9 steps, 0.3 for the other; the pawn is there for the last 5.
    assert 0.3 < rook.recent_return < 0.9
    assert pawn.recent_return == pytest.approx(-0.5, abs=1e-5)


def test_an_agent_without_a_role_is_named(tmp_path):
    with pytest.raises((RunError, RunFailed), match="pawn_0") as caught:
        run_here(crowd(environment__behaviors={"rook_*": "Rook"}), tmp_path, "run")
    assert "environment.behaviors" in str(caught.value)


# The examples, a few steps of each, with real PettingZoo. --------------------------------------------------------------


def example(path, **changes):
    plain = yaml.safe_load((ROOT / path).read_text())
    del plain["checkpoint_settings"]
    plain["environment"]["num_envs"] = 4
    for settings in (plain.get("default_settings") or {}, *plain["behaviors"].values()):
        if "max_steps" in settings:
            settings |= {"max_steps": 600, "summary_freq": 200, "checkpoint_interval": 200}
            settings["hyperparameters"] |= {"buffer_size": 200, "batch_size": 100}
    for settings in plain["behaviors"].values():
        settings["self_play"] |= {"save_steps": 100, "team_change": 200, "swap_steps": 100}
    return changed(changed(plain, INLINE), changes)


@pytest.mark.parametrize(
    ("path", "behaviors"),
    [
        ("config/examples/connect_four.yaml", ["ConnectFour"]),
        ("config/examples/simple_tag.yaml", ["Predator", "Prey"]),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning:pygame.*")
def test_an_example_of_pettingzoo_trains_all_its_sides(path, behaviors, tmp_path):
    pytest.importorskip("pettingzoo", reason="python -m pip install 'headrace[pettingzoo]'")
    pytest.importorskip("mpe2")
    result = run_here(example(path), tmp_path, "run")
    assert {name: told.step >= 600 for name, told in result.behaviors.items()} == dict.fromkeys(behaviors, True)
    assert all((result.folder / name / "league.json").exists() for name in behaviors)


def test_the_example_of_pursuit_trains_both_sides(tmp_path):
    result = run_here(example("config/examples/pursuit.yaml"), tmp_path, "run")
    assert all(result.behaviors[name].step >= 600 for name in ("Pursuer", "Evader"))


def test_a_behaviour_that_joins_later_is_evaluated_too(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    run_here(crowd(evaluation={"every": 300, "episodes": 4}), tmp_path, "run")
    for behavior in ("Rook", "Pawn"):
        assert re.search(rf"{behavior}\. Step: \d+\. Evaluation: ", caplog.text), behavior
        assert (tmp_path / "run" / behavior / f"{behavior}-best.pt").exists()


def test_a_team_may_have_several_behaviours(tmp_path):
    plain = crowd()
    plain["environment"]["behaviors"] = {
        "rook_0": {"behavior": "Rook", "team": 0},
        "pawn_*": {"behavior": "Pawn", "team": 0},
        "rook_1": {"behavior": "Rival", "team": 1},
    }
    play = {**PLAYS, "team_change": 200}
    plain["behaviors"] = {name: {**SHORT, "self_play": dict(play)} for name in ("Rook", "Pawn", "Rival")}
    plain["environment"]["options"] = {"script": {"rook_0": [0, 9, 0.1], "rook_1": [0, 9, -0.1], "pawn_0": [0, 9, 0.1]}}
    result = run_here(plain, tmp_path, "run")
    assert {name: told.step >= 600 for name, told in result.behaviors.items()} == dict.fromkeys(
        ("Rook", "Pawn", "Rival"), True
    )
    for name in ("Rook", "Pawn", "Rival"):
        assert league(tmp_path / "run", name)["snapshots"]

"""A game of OpenSpiel from end to end: learned by self-play, the same twice, scored, evaluated, and asked afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from run_configs import INLINE, changed
from runs import run_here

from headrace import RunError, load_policy, nash_conv
from headrace.pipeline.cli import main

pytest.importorskip("pyspiel", reason="python -m pip install 'headrace[openspiel]'")
pytestmark = pytest.mark.lengthy
EXAMPLES = Path(__file__).parents[2] / "config" / "examples"


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
def test_each_player_can_have_its_own_behaviour(tmp_path):
    plain = kuhn(environment__behaviors={"player_0": "First", "*": "Second"})
    block = plain["behaviors"].pop("Kuhn")
    plain["behaviors"] = {"First": block, "Second": block}
    result = run_here(plain, tmp_path, "run")
    results = json.loads((result.folder / "First" / "league.json").read_text())["results"]
    assert {entry["against"] for entry in results} == {"Second"}
    each = {0: result.folder / "First", 1: result.folder / "Second"}
    assert 0 < nash_conv(each, "kuhn_poker") < 4


@pytest.mark.slow
def test_the_mixture_of_a_league_has_a_nash_conv(tmp_path, in_this_process):
    league = {"learners": {"main": {"freeze": {"at_most": 300}}}}
    plain = kuhn(behaviors__Kuhn__league=league, behaviors__Kuhn__self_play=None)
    folder = run_here(plain, tmp_path, "run").folder
    mixture = load_policy(folder, mixture=True)
    assert 0 < nash_conv(folder, "kuhn_poker") < 4
    mixed = nash_conv(mixture, "kuhn_poker")
    by_hand = nash_conv(mixture.members, "kuhn_poker", weights=mixture.probabilities)
    assert mixed == pytest.approx(by_hand)
    with pytest.raises(RunError, match="weights: the mixture of a league has its own"):
        nash_conv(mixture, "kuhn_poker", weights=[1.0] * len(mixture.members))
    assert "league.png" in in_this_process(main, "--plot", str(folder))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_mirror_self_play_of_a_regularised_policy_comes_near_an_equilibrium_of_kuhn_poker(tmp_path):
    """Uniform play has a NashConv of 0.917."""
    plain = yaml.safe_load((EXAMPLES / "kuhn-regularized.yaml").read_text())
    result = run_here(plain | {"env_settings": {"seed": 5}}, tmp_path, "run")
    assert nash_conv(result, "kuhn_poker") <= 0.1


def kuhn_for_two(**changes):
    plain = kuhn(environment__behaviors={"player_0": "First", "player_1": "Second"})
    block = {key: each for key, each in plain["behaviors"].pop("Kuhn").items() if key != "self_play"}
    learners = {"main": {"matches": [{"match": "self"}, {"match": "meta"}], "freeze": {"at_most": 200}}}
    league = {"payoff": "mean_return", "meta_solver": "replicator", "rating": 0.1, "learners": learners}
    spoiler = {"matches": [{"match": "newest", "against": "main"}], "freeze": {"at_most": 300}, "reset": {}}
    plain["behaviors"] = {
        "First": {**block, "league": league},
        "Second": {**block, "league": {**league, "members": "random", "learners": {**learners, "spoiler": spoiler}}},
    }
    return changed(plain, changes)


@pytest.mark.slow
def test_each_player_can_have_its_own_league_and_resume_it(tmp_path):
    folder = run_here(kuhn_for_two(), tmp_path, "run").folder
    report = json.loads((folder / "First" / "league.json").read_text())
    members = report["members"]
    assert {each["behavior"] for each in members} == {"First", "Second"}
    assert {each["learner"] for each in members} == {"First.main", "Second.main", "Second.spoiler", ""}
    sides = [name.partition(".")[0] for name in report["players"]]
    for row, played in zip(sides, report["games"], strict=True):
        assert all(not games or row != column for column, games in zip(sides, played, strict=True))
    assert all(met.startswith("Second.") for met, _ in report["learners"][0]["opponents"])
    assert load_policy(folder, "Second").behavior == "Second.main"
    mine = next(each["number"] for each in members if each["learner"] == "First.main")
    with pytest.raises(RunError, match=f"member-{mine} of .* plays First, not Second"):
        load_policy(folder / "Second.main", checkpoint=f"member-{mine}")
    assert nash_conv({0: load_policy(folder, "First"), 1: load_policy(folder, "Second")}, "kuhn_poker") > 0
    run_here(
        kuhn_for_two(behaviors__First__max_steps=1500, behaviors__Second__max_steps=1500), tmp_path, "run", resume=True
    )
    after = json.loads((folder / "First" / "league.json").read_text())["members"]
    assert after[: len(members)] == members
    assert len(after) > len(members)

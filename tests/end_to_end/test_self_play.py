"""Asymmetric self-play from end to end: hiders and seekers of unequal number, and a referee who plays for nobody."""

from __future__ import annotations

import json
import logging
from importlib.util import find_spec
from typing import Any

import pytest
from PIL import Image
from run_configs import INLINE, changed
from run_folders import read_whole_checkpoint
from runs import run_here

from headrace.pipeline.common.errors import RunError, RunFailed

PPO = {
    "trainer_type": "ppo",
    "max_steps": 2000,
    "time_horizon": 5,
    "summary_freq": 1000,
    "checkpoint_interval": 700,
    "hyperparameters": {"buffer_size": 100, "batch_size": 50, "num_epoch": 2, "learning_rate": 3e-3},
    "network_settings": {"hidden_units": 8, "num_layers": 1},
}
PLAYS = {"save_steps": 200, "team_change": 300, "swap_steps": 40, "window": 4}


def duel(referees=1, **changes):
    plain: dict[str, Any] = {
        "environment": {
            "kind": "gymnasium",
            "factory": "duel_env:Duel",
            "num_envs": 4,
            "behavior": "Hider",
            "options": {"referees": referees},
        },
        "env_settings": {"seed": 11},
        "behaviors": {
            "Hider": {**PPO, "self_play": {**PLAYS, "swap_steps": 40}},
            "Seeker": {**PPO, "self_play": {**PLAYS, "swap_steps": 160}},
        },
    }
    if referees:
        plain["behaviors"]["Referee"] = dict(PPO)
    return changed(changed(plain, INLINE), changes)


def league(folder, behavior):
    return json.loads((folder / behavior / "league.json").read_text())


def test_both_sides_and_a_behaviour_of_no_side_train_to_their_ends(tmp_path, caplog):
    result = run_here(duel(environment__options__declares=False), tmp_path, "run")
    for name in ("Hider", "Seeker", "Referee"):
        assert 2000 <= result.behaviors[name].step < 2200
        assert result.behaviors[name].export is not None
    assert result.behaviors["Referee"].elo is None
    assert result.behaviors["Referee"].recent_return > 0.57, "chance is 0.50 ± 0.02: it has learned"
    for name, other in (("Hider", "Seeker"), ("Seeker", "Hider")):
        told = league(result.folder, name)
        assert told["rating"] == result.behaviors[name].elo
        assert len(told["snapshots"]) > 5
        met = sum(entry[how] for entry in told["results"] for how in ("won", "drawn", "lost"))
        # 5 decisions of 1 hider or 2 seekers are a game; some end in the other side's turn or were not over.
        assert met == pytest.approx(2000 / (5 if name == "Hider" else 10), rel=0.15)
        assert {entry["against"] for entry in told["results"]} == {other}
        with Image.open(result.folder / name / "league.png") as picture:
            assert picture.width > 100
    assert not (result.folder / "Referee" / "league.json").exists()


@pytest.mark.lengthy
def test_all_teams_learn_at_once_each_to_its_end(tmp_path):
    plain = duel(0)
    for name, steps in (("Hider", 300), ("Seeker", 900)):
        rule = {"learning_teams": "all", "save_steps": 100}
        plain["behaviors"][name] |= {"self_play": rule, "max_steps": steps}
    whole = run_here(plain, tmp_path, "whole")
    assert 300 <= whole.behaviors["Hider"].step < 400
    assert 900 <= whole.behaviors["Seeker"].step < 1000
    state = read_whole_checkpoint(whole.folder)["ghost@main"]
    assert not state["frozen"]
    assert all(lineage["counters"]["ghost_step"] == 0 for lineage in state["lineages"].values())
    assert league(whole.folder, "Seeker")["rating"] != 1200


def test_a_resumed_run_trains_the_side_that_is_not_done_and_exports_each_policy_once(tmp_path, caplog):
    short = {f"behaviors__{side}__checkpoint_interval": 250 for side in ("Hider", "Seeker")}
    short["behaviors__Hider__max_steps"] = 700
    first = run_here(duel(0, **short, behaviors__Seeker__max_steps=300), tmp_path, "run")
    assert first.behaviors["Hider"].step >= 700
    caplog.clear()  # a test before this one may have left the level at which the first run's lines are kept
    caplog.set_level(logging.INFO, "headrace.pipeline")
    second = run_here(duel(0, **short, behaviors__Seeker__max_steps=1000), tmp_path, "run", resume=True)
    assert second.behaviors["Hider"].step == first.behaviors["Hider"].step
    assert second.behaviors["Seeker"].step >= 1000
    exported = [text for text in caplog.messages if text.startswith("Exported ")]
    assert len(exported) >= 3, "at several checkpoints"
    assert len(set(exported)) == len(exported)


def test_three_teams_take_turns_and_play_each_other(tmp_path):
    plain = duel(0, environment__factory="duel_env:Crowd", environment__behavior="Ball", pipeline__deterministic=True)
    play = {**PLAYS, "play_against_latest_model_ratio": 0.0}
    plain["behaviors"] = {"Ball": {**PPO, "self_play": play}}
    result = run_here(plain, tmp_path, "run")
    told = league(result.folder, "Ball")
    games = sum(sum(entry[how] for how in ("won", "drawn", "lost")) for entry in told["results"])
    # 5 decisions are a game, in which the one that learns has two duels.
    assert games == pytest.approx(2 * 2000 / 5, rel=0.2)
    assert read_whole_checkpoint(result.folder)["ghost@main"]["ids"] == ["Ball?team=0", "Ball?team=1", "Ball?team=2"]
    assert result.behaviors["Ball"].recent_return > 0.6
    assert told["rating"] > 1200, "of a policy that has only met what it was before"
    if find_spec("openskill"):
        assert told["skill"] is not None


def test_a_resumed_run_continues_without_a_team_that_is_gone(tmp_path, caplog):
    plain = duel(0, environment__factory="duel_env:Crowd", environment__behavior="Ball", pipeline__deterministic=True)
    plain["behaviors"] = {"Ball": {**PPO, "max_steps": 700, "self_play": {**PLAYS, "team_change": 200}}}
    first = run_here(plain, tmp_path, "run")
    assert read_whole_checkpoint(first.folder)["ghost@main"]["learning_team"] == 2, "the one that will be gone"
    plain["environment"]["options"]["teams"] = 2
    second = run_here(changed(plain, {"behaviors__Ball__max_steps": 1500}), tmp_path, "run", resume=True)
    assert second.behaviors["Ball"].step >= 1500
    assert "Self-play continues without Ball?team=2" in caplog.text
    ghost = read_whole_checkpoint(second.folder)["ghost@main"]
    assert ghost["ids"] == ["Ball?team=0", "Ball?team=1"]
    assert ghost["learning_team"] in (0, 1)


def test_a_run_is_not_resumed_without_the_self_play_block_of_a_side(tmp_path):
    plain = duel(0, behaviors__Hider__max_steps=100, behaviors__Seeker__max_steps=100)
    run_here(plain, tmp_path, "run")
    del plain["behaviors"]["Seeker"]["self_play"]
    with pytest.raises(RunError, match=r"behaviors\.Seeker\.self_play is False, but the checkpoint was written with"):
        run_here(plain, tmp_path, "run", resume=True)


def test_an_environment_with_a_single_team_gives_a_warning(tmp_path, caplog):
    plain = duel(0, environment__options__hiders=0, environment__options__declares=False)
    plain["environment"]["factory"] = "duel_env:Alone"
    del plain["behaviors"]["Hider"]
    plain["behaviors"]["Seeker"]["max_steps"] = 300
    plain["environment"]["behavior"] = "Seeker"
    run_here(plain, tmp_path, "run")
    assert "the environment has only one team (Seeker?team=1)" in caplog.text


def test_a_team_without_a_block_in_the_yaml_is_an_error_that_names_it(tmp_path):
    plain = duel(0)
    del plain["behaviors"]["Seeker"]
    with pytest.raises(RunFailed, match="Seeker"):
        run_here(plain, tmp_path, "run")


def test_opponents_may_be_chosen_by_a_class_of_the_user_s(tmp_path):
    plain = duel(0, behaviors__Seeker__self_play__opponents="duel_env:Oldest")
    plain["behaviors"]["Seeker"]["self_play"]["play_against_latest_model_ratio"] = 0.0
    result = run_here(plain, tmp_path, "run")
    met = {entry["snapshot"] for entry in league(result.folder, "Hider")["results"]}
    oldest = len(league(result.folder, "Seeker")["snapshots"]) - PLAYS["window"]
    assert oldest > 2
    assert 0 < max(met) <= oldest


def tired(choices):
    """A run whose seekers choose so many opponents before their sampler fails."""
    plain = duel(0, behaviors__Seeker__self_play__opponents="duel_env:Tired")
    plain["behaviors"]["Seeker"]["self_play"] |= {
        "opponents_with": {"choices": choices},
        "play_against_latest_model_ratio": 0.0,
    }
    return plain


def test_a_failed_run_writes_its_league(tmp_path):
    with pytest.raises(RunFailed, match="enough for today"):
        run_here(tired(12), tmp_path, "run")
    for name in ("Hider", "Seeker"):
        told = league(tmp_path / "run", name)
        assert len(told["snapshots"]) > 1
        assert told["results"]
        assert (tmp_path / "run" / name / "league.png").exists()


@pytest.mark.parametrize(
    ("opponents", "options", "message"),
    [
        ("duel_env:Missing", {}, "behaviors.Seeker.self_play.opponents"),
        ("duel_env:Duel", {}, r"duel_env:Duel has no method choose\(candidates, random\)"),
        ("duel_env:Oldest", {"wrong": 1}, "does not accept"),
    ],
)
def test_a_sampler_that_can_t_be_made_is_reported_before_anything_starts(tmp_path, opponents, options, message):
    plain = duel(0, behaviors__Seeker__self_play__opponents=opponents)
    plain["behaviors"]["Seeker"]["self_play"]["opponents_with"] = options
    with pytest.raises(RunError, match=message):
        run_here(plain, tmp_path, "run")
    assert not (tmp_path / "run").exists()

"""Ratings of brains that play each other where nobody learns."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.config.brains import OwnBrainSettings
from headrace.stages.ghost import BrainLeague

HALVES = [OwnBrainSettings(use="scripted", weight=0.5), OwnBrainSettings(use="random", weight=0.5)]


def games(*results):
    """Games of (outcome for team 0, draw of team 0, draw of team 1)."""
    return {
        "game_team": np.zeros(len(results), np.int32),
        "game_outcome": np.array([result[0] for result in results], np.float32),
        "game_draws": np.array([result[1:] for result in results], np.float32),
    }


def league(*behavior_ids, brains=HALVES):
    made = BrainLeague()
    for behavior_id in behavior_ids or ("Ball?team=0", "Ball?team=1"):
        made.add_behavior(behavior_id, brains)
    return made


def test_a_win_moves_both_ratings_by_the_same_amount():
    made = league()
    assert made.rate(games((1.0, 0.1, 0.9))) == [
        ("Ball", "Self-play/ELO of random", 1192.0),
        ("Ball", "Self-play/ELO of scripted", 1208.0),
    ]
    (told,) = made.reports().values()
    assert [(each["brain"], each["won"], each["lost"]) for each in told["brains"]] == [
        ("scripted", 1, 0),
        ("random", 0, 1),
    ]
    assert {(each["since"], each["brain"], each["won"], each["lost"]) for each in told["results"]} == {
        (0, "random", 1, 0),
        (1, "scripted", 0, 1),
    }


def test_a_game_of_a_brain_against_itself_is_not_rated():
    made = league()
    assert made.rate(games((1.0, 0.1, 0.2))) == []
    assert made.reports() == {}


def test_teams_with_one_brain_each_need_no_draw():
    made = league(brains=[OwnBrainSettings(use="scripted", teams=(0,)), OwnBrainSettings(use="random", teams=(1,))])
    columns = games((0.0, -1.0, -1.0))
    del columns["game_draws"]
    assert {what: rating for _, what, rating in made.rate(columns)} == {
        "Self-play/ELO of random": 1208.0,
        "Self-play/ELO of scripted": 1192.0,
    }


def test_each_pair_of_three_teams_is_a_duel():
    made = league("Ball?team=0", "Ball?team=1", "Ball?team=2", brains=HALVES)
    columns = games((1.0, 0.1, 0.9)) | {
        "game_outcomes": np.array([[3, 1, 2]], np.float32),
        "game_draws": np.array([[0.1, 0.9, 0.9]], np.float32),
    }
    rated = {what: rating for _, what, rating in made.rate(columns)}
    assert rated["Self-play/ELO of scripted"] == pytest.approx(1208.0, abs=0.5)
    assert rated["Self-play/ELO of random"] == pytest.approx(1192.0, abs=0.5)


def test_a_resumed_run_keeps_the_ratings():
    made = league()
    made.rate(games((1.0, 0.1, 0.9), (0.5, 0.1, 0.9)))
    resumed = BrainLeague()
    resumed.load_state_dict(made.state_dict())
    resumed.add_behavior("Ball?team=0", HALVES)
    resumed.add_behavior("Ball?team=1", HALVES)
    assert resumed.reports() == made.reports()

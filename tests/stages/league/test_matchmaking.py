"""Whom a learner meets: weightings, verification, the newest policies of others, quality scores."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
from league_fakes import settings

from headrace.config.league import MatchSettings
from headrace.stages.league.matchmaking import (
    OWN,
    Matchmaker,
    PayoffTable,
    QualityScores,
    forgotten,
    learner_code,
    weighted,
)
from headrace.stages.league.pool import Member

MAIN, EXPLOITER = learner_code(0), learner_code(1)


def matchmaker(league: object, frozen: list[str], chances: Mapping[tuple[int, int], float]) -> Matchmaker:
    """One whose pool has members of these learners, and in which players beat each other with these probabilities."""
    found = settings(league)
    payoffs = PayoffTable("win_rate", 1.0, smoothing=0)
    for (a, b), chance in chances.items():
        payoffs.count(a, b, np.array([chance]), np.array([1 - chance]))
    members = [Member(i, learner, -1, 0, 0, "", "") for i, learner in enumerate(frozen)]
    return Matchmaker(found, payoffs, members, tuple(found.learners))


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        ("squared", [1.0, 0.25, 0.01]),
        ("variance", [0.0, 0.25, 0.09]),
        ("linear", [1.0, 0.5, 0.1]),
        ("linear_capped", [0.5, 0.5, 0.1]),
        ("uniform", [1.0, 1.0, 1.0]),
    ],
)
def test_weights_are_those_of_the_formula(weighting, expected):
    assert weighted([0.0, 0.5, 0.9], weighting) == pytest.approx(np.array(expected) / sum(expected))


@pytest.mark.parametrize("weighting", ["squared", "variance", "linear", "linear_capped"])
def test_without_weights_all_are_equally_likely(weighting):
    assert weighted([1.0, 1.0, 1.0, 1.0], weighting).tolist() == [0.25] * 4


@pytest.mark.parametrize(
    ("chances", "left"),
    [([], 0), ([0.5], 0), ([0.9, 0.8, 0.7], 0), ([0.9, 0.6, 0.65, 0.6], 3), ([0.1, 0.2], 2), ([0.5, 0.5, 0.5], 0)],
)
def test_former_policies_without_the_suffix_of_falling_chances(chances, left):
    assert forgotten(chances) == left


VERIFY = {
    "learners": {
        "main": {"matches": [{"match": "verify", "against": "exploiter"}]},
        "exploiter": {"matches": [{"match": "self"}]},
        "third": {"matches": [{"match": "self"}]},
    }
}


def test_exploiters_that_beat_a_learner_are_verified():
    found = matchmaker(VERIFY, ["main", "exploiter", "exploiter", "third"], {(MAIN, 1): 0.2, (MAIN, 2): 0.5})
    total = 0.8**2 + 0.5**2
    assert found.draw("main") == pytest.approx({1: 0.8**2 / total, 2: 0.5**2 / total})


def test_former_policies_that_a_learner_has_forgotten_are_verified():
    chances = {(MAIN, 0): 0.6, (MAIN, 1): 0.3, (MAIN, 2): 0.65, (MAIN, 3): 0.6, (MAIN, 4): 0.3}
    found = matchmaker(VERIFY, ["exploiter", *["main"] * 4], chances)
    total = 0.7**2 + 0.35**2
    assert found.draw("main") == pytest.approx({1: 0.7**2 / total, 2: 0.35**2 / total})


@pytest.mark.parametrize(
    "chances",
    [
        {(MAIN, 0): 0.3, (MAIN, 1): 0.9, (MAIN, 2): 0.8},  # the younger, the harder: nothing forgotten
        {(MAIN, 0): 0.3, (MAIN, 1): 0.7, (MAIN, 2): 0.8},  # all beaten
        {(MAIN, 0): 0.3},
    ],
)
def test_a_learner_without_anything_to_verify_plays_itself(chances):
    frozen = ["exploiter", *["main"] * (len(chances) - 1)]
    assert matchmaker(VERIFY, frozen, chances).draw("main") == {OWN: 1.0}


NEWEST = {
    "learners": {
        "main": {},
        "exploiter": {"matches": [{"match": "newest", "against": "main"}], "freeze": {"first": False}},
    }
}


def test_an_exploiter_meets_mains_newest_policy_if_it_beats_that_now_and_then():
    found = matchmaker(NEWEST, ["main", "main"], {(EXPLOITER, MAIN): 0.11})
    assert found.draw("exploiter") == {MAIN: 1.0}


def test_an_exploiter_that_hardly_ever_beats_main_meets_its_former_policies_by_variance():
    found = matchmaker(NEWEST, ["main", "exploiter", "main"], {(EXPLOITER, MAIN): 0.1, (EXPLOITER, 2): 0.9})
    assert found.draw("exploiter") == pytest.approx({0: 0.25 / 0.34, 2: 0.09 / 0.34})
    assert matchmaker(NEWEST, [], {(EXPLOITER, MAIN): 0.1}).draw("exploiter") == {MAIN: 1.0}


def test_a_learner_without_a_policy_is_not_met():
    found = matchmaker(NEWEST, ["main"], {})
    found.present = ("exploiter",)
    assert found.draw("exploiter") == {}


def test_matches_without_opponents_leave_their_share_to_the_others():
    league = {
        "learners": {
            "main": {
                "matches": [
                    {"match": "self", "weight": 2},
                    {"match": "pfsp", "weight": 1, "against": "main", "weighting": "uniform"},
                    {"match": "pfsp", "weight": 1, "against": "other"},
                ]
            },
            "other": {"freeze": {"first": False}},
        }
    }
    assert matchmaker(league, ["main", "main"], {}).draw("main") == pytest.approx({OWN: 2 / 3, 0: 1 / 6, 1: 1 / 6})


def test_members_that_were_not_trained_here_are_drawn_like_others():
    league = {"members": [{"use": "random", "name": "chance"}], "learners": {"main": {}}}
    found = matchmaker(league, ["main"], {})
    found.members = [*found.members, Member(1, "", -1, 0, 0, "", "random", "random", "chance")]
    assert found.draw("main") == {0: 0.5, 1: 0.5}
    assert found.candidates(MatchSettings(match="pfsp", against=("chance",))) == [1]


def test_the_mixture_is_what_the_meta_solver_says():
    found = matchmaker("psro", ["main", "main"], {})
    assert found.draw("main") == {}
    found.mixture = {0: 0.25, 1: 0.75}
    assert found.draw("main") == {0: 0.25, 1: 0.75}


def test_a_freeze_depends_on_beating_these_members():
    found = matchmaker("alphastar", ["main", "main_exploiter", "league_exploiter"], {})
    assert found.targets("main") == found.targets("league_exploiter") == [0, 1, 2]
    assert found.targets("main_exploiter") == [MAIN]


def test_pairs_that_have_played_least_are_rated_first():
    found = matchmaker("psro", ["main"] * 6, {})
    for pair in found.rating_pairs():
        found.payoffs.count(*pair, np.ones(1), np.zeros(1))
    left = [(1, 5), (2, 3), (2, 4), (2, 5), (3, 4), (3, 5), (4, 5)]
    assert found.rating_pairs() == [*left, (0, 1)]


def rated(found, games):
    """How often each pair of members plays, one game at a time, where 0 and 2 play even games, and the others none."""
    random = np.random.default_rng(3)
    for _ in range(games):
        pair = next(iter(found.rating_pairs()), None)
        if pair is None:
            break
        won = float(random.random() < 0.5) if pair == (0, 2) else 1.0
        found.payoffs.count(*pair, np.array([won]), np.array([1 - won]))
    return {(a, b): found.payoffs.games(a, b) for a in range(4) for b in range(a + 1, 4)}


def test_pairs_whose_games_differ_are_rated_more_than_those_that_always_end_alike():
    played = rated(matchmaker("psro", ["main"] * 4, {}), 400)
    assert min(played.values()) > 0
    assert played.pop((0, 2)) > 2 * max(played.values())


def test_pairs_that_count_in_the_mixture_are_rated_more():
    found = matchmaker("psro", ["main"] * 4, {})
    found.mixture = {0: 0.5, 1: 0.5}
    random = np.random.default_rng(3)
    for _ in range(400):
        won = float(random.random() < 0.5)
        found.payoffs.count(*found.rating_pairs()[0], np.array([won]), np.array([1 - won]))
    assert found.payoffs.games(0, 1) > found.payoffs.games(0, 2) > 4 * found.payoffs.games(2, 3) > 0


def test_a_win_lowers_the_quality_score_by_eta_over_n_and_p():
    scores = QualityScores(0.01)
    assert scores.probabilities([0, 1]).tolist() == [0.5, 0.5]
    scores.won(0, [0, 1])
    weights = [math.exp(-0.01 / (2 * 0.5)), 1.0]
    assert scores.probabilities([0, 1]) == pytest.approx(np.array(weights) / sum(weights))
    scores.won(0, [0, 1])
    lowered = -0.01 - 0.01 / (2 * weights[0] / sum(weights))
    assert dict(scores.state_dict()) == pytest.approx({0: lowered, 1: 0.0})


def test_a_new_opponent_has_the_highest_quality_score():
    scores = QualityScores(0.01)
    scores.load_state_dict([[0, -3.0], [1, -2.0]])
    scores.probabilities([0, 1, 2])
    assert dict(scores.state_dict())[2] == -2.0

"""Elo against figures worked out by hand, and openskill (which may be missing) for games of more than two teams."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.stages.ghost.policy_history import Record
from headrace.stages.ghost.rating import SkillRating, expected_score, fitted_ratings, points_lost, skill

RATINGS = st.floats(-3000, 5000)
OUTCOMES = st.sampled_from([0.0, 0.5, 1.0])


@pytest.mark.parametrize(
    ("difference", "expected"),
    [(0, 0.5), (400, 10 / 11), (-400, 1 / 11), (800, 100 / 101), (200, 0.7597469)],  # Elo's table: 200 points, 0.76
)
def test_the_expected_score_is_elo_s(difference, expected):
    assert expected_score(1200 + difference, 1200) == pytest.approx(expected, abs=1e-7)


def test_a_win_between_equals_moves_half_of_k():
    assert points_lost(1200, [1200], [1.0], k=16) == [8.0]


def test_a_draw_between_equals_moves_nothing():
    assert points_lost(1200, [1200], [0.5], k=16) == [0.0]


def test_a_win_that_was_expected_moves_little():
    assert points_lost(1600, [1200], [1.0], k=11) == pytest.approx([1.0])


def test_several_duels_in_one_game_are_together_worth_one_game():
    assert points_lost(1200, [1200, 1200, 1200], [1.0, 1.0, 0.0], k=12) == [2.0, 2.0, -2.0]


@given(RATINGS, st.lists(st.tuples(RATINGS, OUTCOMES), min_size=1, max_size=5), st.floats(0.1, 100))
def test_a_game_changes_a_rating_by_at_most_k(mine, others, k):
    lost = points_lost(mine, [rating for rating, _ in others], [outcome for _, outcome in others], k)
    assert abs(sum(lost)) <= k * (1 + 1e-9)


def test_fitted_ratings_explain_the_scores():
    truth = np.array([1500.0, 1200.0, 1100.0, 1000.0])
    games = 1e6 * (1 - np.eye(4))
    chances = 1 / (1 + 10 ** ((truth[None] - truth[:, None]) / 400))
    ratings, margins = fitted_ratings(chances * games, games)
    assert ratings == pytest.approx(truth, abs=0.1)
    assert (margins < 1).all()


def test_fitted_ratings_do_not_run_away_and_are_uncertain_with_few_games():
    games = 1 - np.eye(2)
    (winner, loser), (margin, _) = fitted_ratings(np.array([[0.0, 1.0], [0.0, 0.0]]), games)
    assert winner + loser == pytest.approx(2400)
    assert 1200 < winner < 1400
    assert margin > 100
    assert fitted_ratings(np.array([[0.0, 50.0], [0.0, 0.0]]), 50 * games)[0][0] > winner


def test_a_draw_is_half_a_win_and_a_player_without_games_gets_the_mean_rating():
    games = np.array([[0.0, 10.0, 0.0], [10.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    ratings, margins = fitted_ratings(games / 2, games)
    assert ratings == pytest.approx([1200.0] * 3)
    assert margins[2] > margins[0]


def test_without_openskill_nothing_is_rated_with_one_warning(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "openskill", None)
    monkeypatch.setitem(sys.modules, "openskill.models", None)
    rating, records = SkillRating(), [Record(1200.0) for _ in range(3)]
    for _ in range(3):
        assert not rating.rate([[record] for record in records], [1.0, 0.5, 0.0])
    assert [record.mu for record in records] == [None] * 3
    (said,) = caplog.messages
    assert 'pip install "headrace[league]"' in said


def test_the_skill_is_what_a_policy_can_at_least_be_trusted_with():
    assert skill(Record(1200.0)) is None
    assert skill(Record(1200.0, mu=30.0, sigma=2.0)) == 24.0


def test_the_player_that_wins_more_is_rated_higher():
    pytest.importorskip("openskill")
    rating, records = SkillRating(), [Record(1200.0) for _ in range(3)]
    for _ in range(20):
        assert rating.rate([[record] for record in records], [2.0, 1.0, 0.0])
    first, second, third = (skill(record) for record in records)
    assert first > second > third
    assert records[0].sigma < 25 / 3, "and one is the surer of it the more games there were"


def test_a_policy_that_played_for_two_teams_gets_the_mean_of_both_ratings():
    openskill = pytest.importorskip("openskill.models")
    twice, once = Record(1200.0), Record(1200.0)
    SkillRating().rate([[twice], [once], [twice]], [2.0, 1.0, 0.0])
    model = openskill.PlackettLuce()
    (first,), (second,), (third,) = model.rate([[model.rating()] for _ in range(3)], scores=[2.0, 1.0, 0.0])
    assert twice.mu == pytest.approx((first.mu + third.mu) / 2)
    assert once.mu == pytest.approx(second.mu)

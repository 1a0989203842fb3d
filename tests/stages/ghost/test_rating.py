"""ELO, against figures worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.ghost.rating import expected_score, points_lost

RATINGS = st.floats(-3000, 5000)
OUTCOMES = st.sampled_from([0.0, 0.5, 1.0])


@pytest.mark.parametrize(
    ("difference", "expected"),
    [(0, 0.5), (400, 10 / 11), (-400, 1 / 11), (800, 100 / 101), (200, 0.7597469)],  # Elo's table: 200 points, 0.76
)
def test_the_expected_score_is_elo_s(difference, expected):
    assert expected_score(1200 + difference, 1200) == pytest.approx(expected, abs=1e-7)


@given(RATINGS, RATINGS)
def test_the_two_expected_scores_add_up_to_one(mine, theirs):
    assert expected_score(mine, theirs) + expected_score(theirs, mine) == pytest.approx(1)


def test_a_win_between_equals_moves_half_of_k():
    assert points_lost(1200, [1200], [1.0], k=16) == [8.0]


def test_a_draw_between_equals_moves_nothing():
    assert points_lost(1200, [1200], [0.5], k=16) == [0.0]


def test_a_win_that_was_expected_moves_little():
    assert points_lost(1600, [1200], [1.0], k=11) == pytest.approx([1.0])


def test_several_duels_in_one_game_are_together_worth_one_game():
    assert points_lost(1200, [1200, 1200, 1200], [1.0, 1.0, 0.0], k=12) == [2.0, 2.0, -2.0]


@given(RATINGS, st.lists(st.tuples(RATINGS, OUTCOMES), min_size=1, max_size=5), st.floats(0.1, 100))
def test_no_game_moves_anybody_by_more_than_k(mine, others, k):
    lost = points_lost(mine, [rating for rating, _ in others], [outcome for _, outcome in others], k)
    assert abs(sum(lost)) <= k * (1 + 1e-9)

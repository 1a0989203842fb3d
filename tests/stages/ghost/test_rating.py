"""ELO, against figures worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.ghost.rating import expected_score, rated

RATINGS = st.floats(-3000, 5000)


@pytest.mark.parametrize(
    ("difference", "expected"),
    [(0, 0.5), (400, 10 / 11), (-400, 1 / 11), (800, 100 / 101), (200, 0.7597469)],  # Elo's table: 200 points, 0.76
)
def test_the_expected_score_is_elo_s(difference, expected):
    assert expected_score(1200 + difference, 1200) == pytest.approx(expected, abs=1e-7)


def test_a_win_between_equals_moves_half_of_k():
    assert rated(1200, 1200, 1.0, k=16) == (1208, 1192)


def test_a_draw_between_equals_moves_nothing():
    assert rated(1200, 1200, 0.5, k=16) == (1200, 1200)


def test_a_win_that_was_expected_moves_little():
    mine, theirs = rated(1600, 1200, 1.0, k=11)
    assert (mine, theirs) == pytest.approx((1601, 1199))


@given(RATINGS, RATINGS, st.sampled_from([0.0, 0.5, 1.0]), st.floats(0.1, 100))
def test_what_one_gains_the_other_loses_and_never_more_than_k(mine, theirs, outcome, k):
    after = rated(mine, theirs, outcome, k)
    assert after[0] - mine == pytest.approx(theirs - after[1], abs=1e-6)
    assert abs(after[0] - mine) <= k * (1 + 1e-9) + 1e-6


@given(RATINGS, RATINGS)
def test_the_two_expected_scores_add_up_to_one(mine, theirs):
    assert expected_score(mine, theirs) + expected_score(theirs, mine) == pytest.approx(1)

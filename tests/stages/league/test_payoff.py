"""The payoff table: decay, ordered pairs, returns as probabilities, what members inherit."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.stages.league.matchmaking import PayoffTable

LEARNER, OTHER = -2, -3
OUTCOMES = st.sampled_from([0.0, 0.5, 1.0])
GAMES = st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3), OUTCOMES), max_size=40)


def unsmoothed(kind: str, decay: float) -> PayoffTable:
    return PayoffTable(kind, decay, smoothing=0)


def counted(table: PayoffTable, player: int, opponent: int, *values: float) -> PayoffTable:
    own = np.array(values, np.float64)
    table.count(player, opponent, own, 1 - own)
    return table


def test_unknown_payoffs_are_a_half():
    table = PayoffTable("win_rate", 0.99)
    assert table.value(LEARNER, 0) is None
    assert table.chance(LEARNER, 0) == 0.5


def test_earlier_games_of_a_learner_count_less_by_the_decay():
    table = counted(unsmoothed("win_rate", 0.99), LEARNER, 0, 1.0, 1.0)
    counted(table, LEARNER, 0, 0.0)
    expected = (0.99**2 + 0.99) / (0.99**2 + 0.99 + 1)
    assert table.chance(LEARNER, 0) == pytest.approx(expected)
    assert table.chance(0, LEARNER) == pytest.approx(1 - expected)
    assert table.games(LEARNER, 0) == table.games(0, LEARNER) == 3


def test_all_games_of_two_members_count_alike():
    assert counted(PayoffTable("win_rate", 0.5), 0, 1, 1.0, 0.0, 0.0, 0.0).value(0, 1) == 0.25


def test_games_with_oneself_say_nothing():
    table = counted(PayoffTable("win_rate", 0.99), LEARNER, LEARNER, 1.0)
    assert table.chance(LEARNER, LEARNER) == 0.5


@given(GAMES)
def test_batches_give_what_a_slow_loop_over_games_gives(played):
    table = unsmoothed("win_rate", 0.9)
    weights, totals = {}, {}
    for a, b, outcome in played:
        if a == b:
            continue
        decay = 0.9 if min(a, b) < 0 else 1.0
        for key, value in (((a, b), outcome), ((b, a), 1 - outcome)):
            weights[key] = weights.get(key, 0.0) * decay + 1
            totals[key] = totals.get(key, 0.0) * decay + value
    for a, b in {(a, b) for a, b, _ in played}:
        counted(table, a, b, *(v if (x, y) == (a, b) else 1 - v for x, y, v in played if (x, y) == (a, b)))
    one_way = {(a, b) for a, b, _ in played if (b, a) not in {(x, y) for x, y, _ in played}}
    for key in one_way:
        assert table.value(*key) == pytest.approx(totals[key] / weights[key])
        assert table.chance(*key) == pytest.approx(1 - table.chance(*key[::-1]))
    assert all(0 <= table.chance(a, b) <= 1 for a, b, _ in played)


def test_a_mean_return_as_a_probability_is_its_place_in_the_range_of_returns_seen():
    table = unsmoothed("mean_return", 1.0)
    table.count(LEARNER, 0, np.array([-2.0, 1.0]), np.array([2.0, -1.0]))
    assert table.value(LEARNER, 0) == -0.5
    assert table.chance(LEARNER, 0) == pytest.approx((-0.5 + 2) / 4)
    assert table.chance(0, LEARNER) == pytest.approx((0.5 + 2) / 4)
    assert table.chance(LEARNER, 1) == 0.5


def test_win_probabilities_are_smoothed_by_a_virtual_win_and_a_virtual_defeat():
    table = counted(PayoffTable("win_rate", 1.0), LEARNER, 0, 1.0)
    assert table.chance(LEARNER, 0) == pytest.approx(2 / 3)
    assert table.chance(0, LEARNER) == pytest.approx(1 / 3)
    assert table.value(LEARNER, 0) == 1.0
    counted(table, LEARNER, 0, *[1.0] * 97)
    assert table.chance(LEARNER, 0) == pytest.approx(0.99)


def test_a_member_has_its_learners_payoffs_until_it_has_played_as_many_games():
    table = counted(PayoffTable("win_rate", 1.0), LEARNER, 0, 1.0, 1.0, 1.0, 0.0)
    counted(table, LEARNER, OTHER, 1.0)
    table.inherit(1, LEARNER)
    assert (table.value(1, 0), table.value(0, 1), table.games(1, 0)) == (0.75, 0.25, 0)
    assert table.value(1, OTHER) == 1.0
    counted(table, 1, 0, 0.0, 0.0, 0.0)
    assert table.value(1, 0) == 0.75
    counted(table, 1, 0, 1.0)
    assert (table.value(1, 0), table.value(0, 1), table.games(1, 0)) == (0.25, 0.75, 4)


def test_payoffs_from_before_the_last_freeze_are_not_inherited():
    table = counted(counted(PayoffTable("win_rate", 1.0), LEARNER, 0, 1.0), LEARNER, 1, 1.0)
    table.inherit(2, LEARNER)
    counted(table, LEARNER, 1, 0.0)
    table.inherit(3, LEARNER)
    assert (table.value(2, 0), table.value(2, 1)) == (1.0, 1.0)
    assert (table.value(3, 0), table.value(3, 1)) == (None, 0.0)


def test_the_matrix_is_antisymmetric_and_nothing_where_nothing_is_known():
    table = PayoffTable("mean_return", 1.0)
    table.count(0, 1, np.array([4.0]), np.array([-2.0]))
    assert np.array_equal(table.matrix([0, 1, 2]), [[0, 3, 0], [-3, 0, 0], [0, 0, 0]])
    assert table.matrix([]).shape == (0, 0)


def test_a_player_that_is_reset_is_unknown():
    table = counted(counted(PayoffTable("win_rate", 0.99), LEARNER, 0, 1.0), OTHER, 0, 1.0)
    table.forget(LEARNER)
    assert (table.value(LEARNER, 0), table.value(0, LEARNER), table.value(OTHER, 0)) == (None, None, 1.0)


@pytest.mark.lengthy
@given(GAMES, st.sampled_from(["win_rate", "mean_return"]))
def test_the_state_survives_msgpack_bit_for_bit(played, kind):
    table, loaded = PayoffTable(kind, 0.97), PayoffTable(kind, 0.97)
    for a, b, outcome in played:
        counted(table, a, b, outcome / 3)
    table.inherit(7, LEARNER)
    state = msgpack.unpackb(msgpack.packb(table.state_dict()))
    loaded.load_state_dict(state, {})
    assert loaded.state_dict() == table.state_dict()
    counted(table, 7, 0, 0.3)
    counted(loaded, 7, 0, 0.3)
    assert loaded.value(7, 0) == table.value(7, 0)


def test_learners_that_have_another_place_keep_their_payoffs():
    table = counted(counted(PayoffTable("win_rate", 0.99), LEARNER, 0, 1.0), OTHER, 0, 0.0)
    loaded = PayoffTable("win_rate", 0.99)
    loaded.load_state_dict(table.state_dict(), {LEARNER: None, OTHER: -2})
    assert (loaded.value(-2, 0), loaded.value(-3, 0)) == (0.0, None)

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from properties import examples

from headrace.stages.games.volley import (
    BALL_GRAVITY,
    BALL_MAX_SPEED,
    BALL_MIN_REBOUND,
    BALL_RADIUS,
    CEILING,
    HALF_WIDTH,
    NET_RADIUS,
    OBSERVATION_NAMES,
    PLAYER_RADIUS,
    SCALE,
    TICK_S,
    VX,
    VY,
    Courts,
    CourtView,
    X,
    Y,
    advance,
    observe,
)

COURTS = 8
MAX_ROUNDING = 1e-4

unit = st.floats(-1, 1, width=32)


@st.composite
def situations(draw):
    """Courts in any state that can occur, also with the ball deep inside a player or the net; and actions."""
    ball = draw(arrays(np.float32, (4, COURTS), elements=unit))
    players = draw(arrays(np.float32, (4, 2, COURTS), elements=unit))
    ball *= np.array([[HALF_WIDTH], [CEILING / 2], [6], [6]], np.float32)
    ball[Y] += CEILING / 2
    players *= np.array([HALF_WIDTH / 2, CEILING / 4, 2.6, 3.8], np.float32).reshape(4, 1, 1)
    players[X] -= HALF_WIDTH / 2
    players[Y] += CEILING / 4 + PLAYER_RADIUS
    move = draw(arrays(np.int8, (2, COURTS), elements=st.integers(-1, 1))).astype(np.float32)
    jump = draw(arrays(np.bool_, (2, COURTS)))
    return Courts(ball, players), move, jump


def one_court(ball, left=(-1.5, PLAYER_RADIUS, 0, 0), right=(-1.5, PLAYER_RADIUS, 0, 0)):
    courts = Courts.empty(1)
    courts.ball[:, 0] = ball
    courts.players[:, 0, 0], courts.players[:, 1, 0] = left, right
    return courts


def mirrored(courts):
    """The same courts with the sides swapped."""
    ball = courts.ball.copy()
    ball[[X, VX]] *= -1
    return Courts(ball, courts.players[:, ::-1].copy())


def still(courts, ticks=1, move=(0, 0), jump=(False, False)):
    moves, jumps = np.array(move, np.float32)[:, None], np.array(jump)[:, None]
    return [int(advance(courts, moves, jumps)[0]) for _ in range(ticks)]


@pytest.mark.lengthy
@examples(25)
@given(situations())
def test_a_mirrored_court_stays_the_mirror_image_bit_for_bit(situation):
    courts, move, jump = situation
    mirror = mirrored(courts)

    for _ in range(6):
        landed = advance(courts, move, jump)
        mirror_landed = advance(mirror, move[::-1], jump[::-1])

        np.testing.assert_array_equal(mirror.ball, mirrored(courts).ball)
        np.testing.assert_array_equal(mirror.players, mirrored(courts).players)
        np.testing.assert_array_equal(mirror_landed, -landed)


@pytest.mark.lengthy
@examples(15)
@given(situations())
def test_both_sides_of_a_mirrored_court_see_what_the_other_saw(situation):
    courts, _, _ = situation

    np.testing.assert_array_equal(observe(mirrored(courts)), observe(courts)[::-1])


@pytest.mark.lengthy
@examples(25)
@given(situations())
def test_nothing_leaves_the_court_from_any_situation(situation):
    courts, move, jump = situation

    for _ in range(10):
        advance(courts, move, jump)

        assert np.isfinite(courts.ball).all()
        assert np.isfinite(courts.players).all()
        assert (np.abs(courts.ball[X]) <= HALF_WIDTH - BALL_RADIUS + MAX_ROUNDING).all()
        assert (courts.ball[Y] >= BALL_RADIUS - MAX_ROUNDING).all()
        assert (courts.ball[Y] <= CEILING - BALL_RADIUS + MAX_ROUNDING).all()
        assert (np.hypot(courts.ball[VX], courts.ball[VY]) <= BALL_MAX_SPEED + 0.01).all()
        assert (courts.players[X] >= PLAYER_RADIUS - HALF_WIDTH - MAX_ROUNDING).all()
        assert (courts.players[X] <= -PLAYER_RADIUS - NET_RADIUS + MAX_ROUNDING).all()
        assert (courts.players[Y] >= PLAYER_RADIUS - MAX_ROUNDING).all()


def test_a_ball_in_free_flight_follows_the_parabola_of_its_gravity():
    courts = one_court(ball=(-2.5, 1.5, 1.0, 2.0))
    ticks = np.arange(1, 41)

    heights = [float(courts.ball[Y, 0]) for _ in ticks if still(courts) == [0]]

    expected = 1.5 + 2.0 * ticks * TICK_S - BALL_GRAVITY * TICK_S**2 * ticks * (ticks + 1) / 2
    np.testing.assert_allclose(heights, expected, atol=1e-4)
    np.testing.assert_allclose(courts.ball[[X, VX], 0], [-2.5 + 40 * TICK_S, 1.0], atol=1e-4)


def test_a_ball_that_falls_on_a_player_springs_up_again():
    courts = one_court(ball=(-1.5, 1.0, 0, -0.5))

    while courts.ball[VY, 0] < 0:
        assert still(courts) == [0]

    assert courts.ball[VY, 0] >= BALL_MIN_REBOUND - MAX_ROUNDING


def test_a_ball_is_turned_back_by_net_and_walls():
    low = 0.6
    into_net = one_court(ball=(-0.4, low, 3, 0), left=(-2.5, PLAYER_RADIUS, 0, 0))
    into_wall = one_court(ball=(2.7, low + 0.8, 3, 0))

    still(into_net, ticks=5)
    still(into_wall, ticks=5)

    assert into_net.ball[VX, 0] < 0
    assert into_net.ball[X, 0] < -NET_RADIUS
    assert into_wall.ball[VX, 0] < 0


def test_the_fastest_ball_does_not_tunnel_through_the_net():
    starts = np.linspace(-1, -0.3, 50, dtype=np.float32)
    courts = Courts.empty(50)
    courts.ball[X], courts.ball[Y], courts.ball[VX] = starts, 0.5, BALL_MAX_SPEED
    courts.players[X], courts.players[Y] = 1 - HALF_WIDTH, PLAYER_RADIUS

    for _ in range(15):
        advance(courts, np.zeros((2, 50), np.float32), np.zeros((2, 50), np.bool_))

    assert (courts.ball[X] < 0).all()


def test_the_ground_tells_on_whose_side_the_ball_fell():
    aside = (-0.8, PLAYER_RADIUS, 0, 0)
    left = one_court(ball=(-2.2, 0.3, 0, -3), left=aside)
    right = one_court(ball=(2.2, 0.3, 0, -3), right=aside)

    assert still(left, ticks=2) == [0, -1]
    assert still(right, ticks=2) == [0, 1]


def test_players_jump_from_the_ground_only_and_walk_in_their_own_frame():
    courts = one_court(ball=(0, 2, 0, 0))

    still(courts, ticks=10, move=(1, -1), jump=(True, False))
    rising = float(courts.players[VY, 0, 0])
    still(courts, ticks=10, move=(1, -1), jump=(True, False))

    assert courts.players[VY, 0, 0] < rising - 1.5
    assert courts.players[X, 0, 0] > -1.5 > courts.players[X, 1, 0]
    assert courts.players[Y, 1, 0] == np.float32(PLAYER_RADIUS)


def test_observations_are_named_scaled_and_can_be_read_back():
    courts = one_court(ball=(0.5, 1.2, -3, 2), left=(-1, 0.5, 1, 2), right=(-2, 0.6, -1, -2))

    seen = observe(courts)

    assert seen.shape == (2, 1, len(OBSERVATION_NAMES))
    assert seen.dtype == np.float32
    expected_right = [-2, 0.6, -1, -2, -0.5, 1.2, 3, 2, 1, 0.5, -1, 2]
    np.testing.assert_allclose(seen[1, 0] * SCALE, expected_right, rtol=1e-6)
    np.testing.assert_allclose(CourtView.of(seen[1]).ball[:, 0], [-0.5, 1.2, 3, 2], rtol=1e-6)

"""Where everybody is, and how they move."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.stages.games.pursuit import (
    ACCELERATION,
    CATCH_DISTANCE,
    DIRECTIONS,
    EVADER,
    EVADER_SPEED,
    HALF_WIDTH,
    OBSERVATION_SIZE,
    PURSUER_SPEED,
    SPEEDS,
    START_WITHIN,
    TICK_S,
    Arenas,
    advance,
    caught,
    observe,
)


def arena(*places):
    """One arena with the agents at these places, at rest."""
    arenas = Arenas.empty(1)
    arenas.places[0] = places
    return arenas


def run(arenas, direction, ticks):
    for _ in range(ticks):
        advance(arenas, np.broadcast_to(DIRECTIONS[direction] * SPEEDS[:, None], arenas.speeds.shape).copy())


def test_agents_accelerate_to_their_top_speed():
    arenas = arena((-0.9, 0), (-0.9, 0.5), (-0.9, -0.5))
    run(arenas, 1, 1)
    np.testing.assert_allclose(arenas.speeds[0, :, 0], np.full(3, ACCELERATION * TICK_S), rtol=1e-5)
    np.testing.assert_allclose(arenas.places[0, :, 0], -0.9 + arenas.speeds[0, :, 0] * TICK_S, rtol=1e-5)
    run(arenas, 1, 20)
    np.testing.assert_allclose(arenas.speeds[0, :, 0], [PURSUER_SPEED, PURSUER_SPEED, EVADER_SPEED], rtol=1e-5)
    run(arenas, 0, 20)
    np.testing.assert_allclose(arenas.speeds, 0, atol=1e-6)


def test_agents_slide_along_walls():
    arenas = arena((0.99, 0), (0, 0), (0, 0))
    run(arenas, 2, 15)  # to the upper right

    assert arenas.places[0, 0, 0] == HALF_WIDTH
    assert arenas.speeds[0, 0, 0] == 0
    assert arenas.places[0, 0, 1] > 0.1


@pytest.mark.parametrize(("share", "expected"), [(0.99, True), (1.01, False)])
def test_a_pursuer_catches_an_evader_within_its_reach(share, expected):
    for chaser in (0, 1):
        places = [(-0.9, 0.9), (0.9, 0.9), (0, 0)]
        places[chaser] = (share * CATCH_DISTANCE, 0)
        assert caught(arena(*places)).tolist() == [expected]


def test_pursuers_do_not_catch_each_other():
    assert not caught(arena((0.5, 0.5), (0.5, 0.5), (0, 0)))[0]


def test_the_evader_starts_near_the_middle_and_pursuers_at_walls():
    arenas = Arenas.empty(500)
    arenas.speeds[:] = 1
    arenas.place(np.arange(500), np.random.default_rng(0))

    assert np.abs(arenas.places[:, EVADER]).max() <= START_WITHIN
    at_wall = np.abs(arenas.places[:, :EVADER]) == HALF_WIDTH
    np.testing.assert_array_equal(at_wall.sum(axis=2), 1)
    assert (arenas.speeds == 0).all()
    for axis in (0, 1):
        assert 0.4 < at_wall[..., axis].mean() < 0.6
        assert -0.1 < arenas.places[:, :EVADER, axis].mean() < 0.1


def test_observations_are_relative_to_the_agent():
    arenas = arena((0.5, 0.25), (-0.5, 0), (0, 0.5))
    arenas.speeds[0] = [(0.1, 0.2), (0.3, 0.4), (0.5, 0.6)]

    pursuers, evaders = observe(arenas, np.array([0.75], np.float32))

    assert pursuers.shape == (2, OBSERVATION_SIZE)
    np.testing.assert_allclose(
        pursuers[0], [0.5, 0.25, 0.1, 0.2, -1, -0.25, 0.3, 0.4, -0.5, 0.25, 0.5, 0.6, 0.75], atol=1e-6
    )
    np.testing.assert_allclose(pursuers[1], [-0.5, 0, 0.3, 0.4, 1, 0.25, 0.1, 0.2, 0.5, 0.5, 0.5, 0.6, 0.75], atol=1e-6)
    # The first pursuer, 0.56 m away, is nearer than the second, 0.71 m.
    np.testing.assert_allclose(
        evaders[0], [0, 0.5, 0.5, 0.6, 0.5, -0.25, 0.1, 0.2, -0.5, -0.5, 0.3, 0.4, 0.75], atol=1e-6
    )


def test_the_evader_sees_the_nearer_pursuer_first():
    one, other = arena((0.1, 0), (0.9, 0), (0, 0)), arena((0.9, 0), (0.1, 0), (0, 0))

    seen, mirrored = (observe(arenas, np.ones(1, np.float32))[1] for arenas in (one, other))
    np.testing.assert_array_equal(seen, mirrored)

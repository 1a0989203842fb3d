"""Environment parameters that the built-in games take."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.queues.messages import ActionBatch
from headrace.stages.environments.parameters import EnvironmentParameters, EpisodeParameters, connect_parameters
from headrace.stages.errors import StageError
from headrace.stages.games.pursuit import PursuitGroup
from headrace.stages.games.rock_paper_scissors import RockPaperScissorsGroup
from headrace.stages.games.volley import BALL_GRAVITY, SERVE_SPEED, TICK_S, VX, VY, VolleyGroup

FAR_FROM_THE_WALL = np.array([[-0.9, -0.9], [-0.9, 0.9], [-0.9, 0.0]], np.float32)
"""Places of the two pursuers and the evader, from which nobody reaches the wall at +x in a decision."""


def with_parameters(group, **plain):
    """Connect a group with these parameters."""
    parameters = EpisodeParameters()
    parameters.receive(EnvironmentParameters(0, plain))
    parameters.reseed(0, 0)
    connect_parameters(group, parameters)
    return parameters


def discrete(rows, *choices):
    return ActionBatch(np.zeros((rows, 0), np.float32), np.tile(np.array(choices, np.int32), (rows, 1)))


def uniform(least, greatest):
    return {"sampler_type": "uniform", "sampler_parameters": {"min_value": least, "max_value": greatest}}


def run_along(group):
    """Everybody runs towards +x for one decision."""
    return group.step({group.pursuer_id: discrete(2 * group.num_envs, 1), group.evader_id: discrete(group.num_envs, 1)})


def idle(group):
    """Nobody moves for one decision."""
    return group.step(dict.fromkeys(group.behavior_ids, discrete(group.num_envs, 1, 0)))


def test_pursuit_takes_top_speeds():
    group = PursuitGroup(3)
    with_parameters(group, pursuer_speed=0.1, evader_speed=0.2)
    group.reset(0)
    group.arenas.places[:] = FAR_FROM_THE_WALL
    run_along(group)
    np.testing.assert_allclose(group.arenas.speeds[:, :, 0], [[0.1, 0.1, 0.2]] * 3, rtol=1e-5)


def test_pursuit_draws_for_each_game():
    group = PursuitGroup(2, time_limit_s=0.24)  # a game of two decisions
    with_parameters(group, evader_speed=uniform(0.1, 0.3))
    seen = []
    group.reset(0)
    for _ in range(3):
        group.arenas.places[:] = FAR_FROM_THE_WALL
        run_along(group)
        seen += group.arenas.speeds[:, 2, 0].tolist()
        run_along(group)
    assert len({round(speed, 4) for speed in seen}) == 6
    assert all(0.1 <= speed < 0.3 for speed in seen)


def test_volleys_ball_falls_as_its_parameter_says():
    ordinary, light = VolleyGroup(2, frame_skip=1), VolleyGroup(2, frame_skip=1)
    with_parameters(light, ball_gravity=1.5)
    for group in (ordinary, light):
        group.reset(0)
        group.courts.ball[VY] = 0.0
        idle(group)
    np.testing.assert_allclose(ordinary.courts.ball[VY], -BALL_GRAVITY * TICK_S, rtol=1e-6)
    np.testing.assert_allclose(light.courts.ball[VY], -1.5 * TICK_S, rtol=1e-6)


@pytest.mark.parametrize("fastest", [0.3, 1.0])
def test_volleys_serves_are_as_fast_as_their_parameter_says(fastest):
    group = VolleyGroup(500)
    with_parameters(group, serve_speed=fastest)
    group.reset(0)
    speeds = np.abs(group.courts.ball[VX])
    assert speeds.max() <= fastest + 1e-6
    assert speeds.min() >= min(SERVE_SPEED[0], fastest) - 1e-6


def falls(group):
    """By how much the ball gets faster in each match within a second, as far as one tick shows."""
    group.courts.ball[VY] = 0.0
    idle(group)
    return -group.courts.ball[VY] / TICK_S


def test_a_running_match_keeps_its_parameters():
    group = VolleyGroup(2, frame_skip=1, time_limit_s=2 * TICK_S)
    parameters = with_parameters(group, ball_gravity=1.0)
    group.reset(0)
    parameters.receive(EnvironmentParameters(1, {"ball_gravity": 2.0}))
    np.testing.assert_allclose(falls(group), [1.0, 1.0], rtol=1e-5)
    idle(group)  # the matches end
    np.testing.assert_allclose(falls(group), [2.0, 2.0], rtol=1e-5)
    assert parameters.begun.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("group", "name", "hint"),
    [
        (PursuitGroup(1), "pursuers_speed", "environment_parameters.pursuers_speed: .*did you mean 'pursuer_speed'?"),
        (
            VolleyGroup(1),
            "wind",
            "environment_parameters.wind: VolleyGroup has no parameter of this name; it accepts ball_gravity",
        ),
        (RockPaperScissorsGroup(2), "stake", "RockPaperScissorsGroup has no parameter of this name; it accepts none"),
    ],
)
def test_a_parameter_that_a_game_does_not_take_is_refused(group, name, hint):
    with pytest.raises(StageError, match=hint):
        with_parameters(group, **{name: 1.0})

"""A scripted opponent with human limitations.

The player sees what a policy sees and keeps no state between decisions. It runs to where the ball will land, and jumps
if the ball is within reach. It does not aim, and its predictions are imperfect: it reacts only to a ball that has
crossed the net, predicts 70 % of the remaining flight (so it is late for fast and distant balls), and considers only
rebounds from the wall behind it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch, Array, Floats
from headrace.stages.games.volley.physics import (
    BALL_GRAVITY,
    BALL_RADIUS,
    HALF_WIDTH,
    HOME,
    PLAYER_RADIUS,
    VX,
    VY,
    CourtView,
    X,
    Y,
)

_CONTACT_HEIGHT: Final = 0.85
"""Height of the ball's centre, in metres, at which the player expects to hit the ball."""
_FORESIGHT: Final = 0.7
"""Fraction of the remaining flight that the player predicts."""
_BEHIND: Final = 0.17
"""Distance in metres behind the ball at which the player stands, so the ball goes forward."""
_STEADY: Final = 0.08
"""Distance from the target, in metres, within which the player stands still."""
_JUMP_REACH: Final = (0.4, 0.75, 1.3)
"""Three lengths in metres.

The player jumps at a falling ball that is within the first length sideways and between the other two in height.
"""

_BACK, _STAY, _FORWARD = 0, 1, 2


class ScriptedPlayer:
    """Plays any number of courts simultaneously; equal observations always get equal actions."""

    def act(self, observations: tuple[Array, ...]) -> ActionBatch:
        """Decide for d players, given their observations [d, 12]."""
        seen = CourtView.of(observations[0])
        way = _target(seen) - seen.own[X]
        move = np.where(way > _STEADY, _FORWARD, np.where(way < -_STEADY, _BACK, _STAY))
        discrete = np.stack([move, _jumps(seen)], axis=1).astype(np.int32)
        return ActionBatch(np.zeros((len(discrete), 0), dtype=np.float32), discrete)

    __call__ = act


def _target(seen: CourtView) -> Floats:
    """Return [d] where to stand: behind the expected landing point, or at home if the ball is in the other half."""
    ball = seen.ball
    above = np.maximum(ball[Y] - _CONTACT_HEIGHT, 0.0)
    seconds = (ball[VY] + np.sqrt(ball[VY] ** 2 + 2 * BALL_GRAVITY * above)) / BALL_GRAVITY
    landing = ball[X] + _FORESIGHT * ball[VX] * np.maximum(seconds, 0.0)
    wall = BALL_RADIUS - HALF_WIDTH
    landing = np.where(landing < wall, 2 * wall - landing, landing)
    ours = (ball[X] < 0) & (landing < 0)
    spot = np.clip(landing - _BEHIND, PLAYER_RADIUS - HALF_WIDTH, 0.0)
    return np.where(ours, spot, -HOME).astype(np.float32)


def _jumps(seen: CourtView) -> NDArray[np.bool_]:
    ball, (sideways, low, high) = seen.ball, _JUMP_REACH
    near = np.abs(ball[X] - seen.own[X]) < sideways
    return np.asarray(near & (ball[VY] < 0) & (ball[Y] > low) & (ball[Y] < high))

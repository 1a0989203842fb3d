"""The observation of a player: twelve numbers in its own frame, the same on both sides of the net.

`CourtView` inverts the scaling for scripted players, which see the same as a trained policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from headrace.queues.messages import Floats
from headrace.stages.games.volley.physics import Courts
from headrace.stages.games.volley.rules import BALL_MAX_SPEED, CEILING, HALF_WIDTH, PLAYER_JUMP, PLAYER_SPEED

OBSERVATION_NAMES: Final = (
    *("own_x", "own_y", "own_vx", "own_vy"),
    *("ball_x", "ball_y", "ball_vx", "ball_vy"),
    *("opponent_x", "opponent_y", "opponent_vx", "opponent_vy"),
)
OBSERVATION_SIZE: Final = len(OBSERVATION_NAMES)

_PLAYER_SCALE = (HALF_WIDTH, CEILING, PLAYER_SPEED, PLAYER_JUMP)
_BALL_SCALE = (HALF_WIDTH, CEILING, BALL_MAX_SPEED, BALL_MAX_SPEED)
SCALE: Final[Floats] = np.array([*_PLAYER_SCALE, *_BALL_SCALE, *_PLAYER_SCALE], dtype=np.float32)
"""[12] metres or metres per second that an observation of 1 stands for."""

_FLIP = np.array([-1, 1, -1, 1], dtype=np.float32).reshape(4, 1, 1)
_BALL_TO_FRAMES = np.array([[1, -1], [1, 1], [1, -1], [1, 1]], dtype=np.float32).reshape(4, 2, 1)


def observe(courts: Courts) -> Floats:
    """Return the observations [2, C, 12] of each team's player, within about [-1, 1]; x < 0 in the own half."""
    features = np.empty((3, 4, 2, courts.ball.shape[1]), dtype=np.float32)
    features[0] = courts.players
    np.multiply(courts.ball[:, None], _BALL_TO_FRAMES, out=features[1])
    np.multiply(courts.players[:, ::-1], _FLIP, out=features[2])
    seen = features.reshape(OBSERVATION_SIZE, 2, -1).transpose(1, 2, 0) / SCALE
    return np.ascontiguousarray(seen)


@dataclass(frozen=True, slots=True)
class CourtView:
    """Observations [d, 12] of d players back in metres and seconds, each [4, d]: x, y, vx, vy."""

    own: Floats
    ball: Floats
    opponent: Floats

    @classmethod
    def of(cls, observations: Floats) -> CourtView:
        """Undo the scaling of `observe`."""
        metres = (observations * SCALE).T
        return cls(metres[:4], metres[4:8], metres[8:])

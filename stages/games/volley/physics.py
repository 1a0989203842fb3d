"""Many courts simultaneously: constants, the state of players and balls, one tick of motion, and observations.

Pure mechanics: this module has no points, serves or episodes (see `group`) and draws no random numbers. Lengths are in
metres, times in seconds. The constants are tuned for short games that skill decides; docs/volley.md describes the
effect of changing each. Axis letters: C courts; the players' arrays have a team axis of size 2 before it.

The two sides are symmetric bit for bit. Each player's state is kept in the player's own frame, in which the net is at x
= 0, the player's half has x < 0, and forward is +x; the ball uses team 0's frame. Mirroring a court swaps the team axis
and negates the ball's x. Every expression below is written so that floating-point rounding commutes with mirroring.

An observation is twelve numbers in the player's own frame, the same on both sides of the net. `CourtView` inverts their
scaling for scripted players, which see the same numbers as a trained policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Floats

TICK_S: Final = 0.02
"""Seconds per physics tick; a decision lasts `frame_skip` ticks."""

HALF_WIDTH: Final = 3.0
"""Distance from the net (x = 0) to either wall."""
CEILING: Final = 2.75
NET_HEIGHT: Final = 0.9
NET_RADIUS: Final = 0.05
"""Radius of the net, which is a post with a round top.

The net consists of all points at most this far from the line from (0, 0) to (0, NET_HEIGHT).
"""

PLAYER_RADIUS: Final = 0.34
PLAYER_SPEED: Final = 2.6
PLAYER_ACCELERATION: Final = 20.0
PLAYER_JUMP: Final = 3.8
"""Upward speed at take-off, for a jump that is 0.72 m high and lasts 0.76 s."""
PLAYER_GRAVITY: Final = 10.0

BALL_RADIUS: Final = 0.2
BALL_GRAVITY: Final = 6.5
"""Gravity of the ball.

It is lower than the players' gravity, because a slowly falling ball gives players time to think.
"""
BALL_MAX_SPEED: Final = 6.5
"""Maximum speed of the ball, below (BALL_RADIUS + NET_RADIUS) / TICK_S, so it can't tunnel through the net."""
BALL_MIN_REBOUND: Final = 3.6
"""Minimum speed at which the ball leaves a player; players are springy, so they can't carry the ball."""

PLAYER_RESTITUTION: Final = 0.95
WALL_RESTITUTION: Final = 0.85
NET_RESTITUTION: Final = 0.6
FLOOR_RESTITUTION: Final = 0.5
"""Restitution of the floor.

It affects only what viewers see, because the rally ends when the ball touches the floor.
"""

HOME: Final = 1.5
"""Distance from the net at which a player waits for the serve."""
SERVE_HEIGHT: Final = 2.0
SERVE_SPEED: Final = (0.7, 2.1)
"""Range of the serve's horizontal speed; the ball starts above the net and flies towards the receiving side."""
SERVE_RISE: Final = (0.4, 1.8)
"""Range of the serve's upward speed."""


X, Y, VX, VY = range(4)
"""Row indices of `Courts.ball` and `Courts.players`."""

_TO_BALL_FRAME = np.array([[1.0], [-1.0]], dtype=np.float32)
_TINY = 1e-6


@dataclass(frozen=True, slots=True)
class Courts:
    """The state of C courts; `advance` changes the arrays in place."""

    ball: Floats
    """[4, C] the ball's x, y, vx, vy in team 0's frame, in metres and metres per second."""
    players: Floats
    """[4, 2, C] each player's x, y, vx, vy in the player's own frame, in metres and metres per second."""

    @classmethod
    def empty(cls, courts: int) -> Courts:
        """Return courts with all values 0, for a serve to fill in."""
        return cls(np.zeros((4, courts), np.float32), np.zeros((4, 2, courts), np.float32))


def advance(
    courts: Courts, move: Floats, jump: NDArray[np.bool_], ball_gravity: Floats | float = BALL_GRAVITY
) -> NDArray[np.int8]:
    """Move everything by one tick.

    Args:
        courts: changed in place.
        move: [2, C] -1 back, 0 stay, 1 forward, each in the player's own frame.
        jump: [2, C] true to jump if the player stands on the ground.
        ball_gravity: one value for all courts, or [C]; metres per second squared.

    Returns:
        [C] 0 while the ball is in the air, -1 if it touched the ground in team 0's half, 1 in team 1's.
    """
    _move_players(courts.players, move, jump)
    _fly(courts.ball, ball_gravity)
    _bounce_off_players(courts.ball, courts.players)
    _bounce_off_net(courts.ball)
    _limit_speed(courts.ball)
    return _stay_inside(courts.ball)


def _move_players(players: Floats, move: Floats, jump: NDArray[np.bool_]) -> None:
    x, y, vx, vy = players
    gain = PLAYER_ACCELERATION * TICK_S
    vx += np.clip(move * PLAYER_SPEED - vx, -gain, gain)
    x += vx * TICK_S
    stopped = (x > -(PLAYER_RADIUS + NET_RADIUS)) | (x < PLAYER_RADIUS - HALF_WIDTH)
    np.clip(x, PLAYER_RADIUS - HALF_WIDTH, -(PLAYER_RADIUS + NET_RADIUS), out=x)
    vx[stopped] = 0.0
    vy[jump & (y <= PLAYER_RADIUS)] = PLAYER_JUMP
    vy -= PLAYER_GRAVITY * TICK_S
    y += vy * TICK_S
    grounded = y <= PLAYER_RADIUS
    y[grounded] = PLAYER_RADIUS
    vy[grounded] = 0.0


def _fly(ball: Floats, gravity: Floats | float) -> None:
    ball[VY] -= gravity * TICK_S
    ball[:VX] += ball[VX:] * TICK_S


def _bounce_off_players(ball: Floats, players: Floats) -> None:
    """Push the ball out of both players, and make it rebound from each relative to that player's motion."""
    reach = PLAYER_RADIUS + BALL_RADIUS
    dx = ball[X] * _TO_BALL_FRAME - players[X]
    dy = ball[Y] - players[Y]
    distance = np.sqrt(dx * dx + dy * dy)
    touching = distance < reach
    if not touching.any():
        return
    np.maximum(distance, _TINY, out=distance)
    nx, ny = dx / distance, dy / distance
    approach = (ball[VX] * _TO_BALL_FRAME - players[VX]) * nx + (ball[VY] - players[VY]) * ny
    rebound = np.maximum(-PLAYER_RESTITUTION * approach, BALL_MIN_REBOUND)
    kick = np.where(touching, np.maximum(rebound - approach, 0.0), 0.0)
    push = np.where(touching, reach - distance, 0.0)
    # Both teams' contributions are added together before they are added to the ball's state, which survives mirroring
    # exactly.
    _add_from_both(ball[X], push * nx * _TO_BALL_FRAME)
    _add_from_both(ball[Y], push * ny)
    _add_from_both(ball[VX], kick * nx * _TO_BALL_FRAME)
    _add_from_both(ball[VY], kick * ny)


def _add_from_both(row: Floats, parts: Floats) -> None:
    row += parts[0] + parts[1]


def _bounce_off_net(ball: Floats) -> None:
    x, y, vx, vy = ball
    reach = BALL_RADIUS + NET_RADIUS
    dy = y - np.minimum(y, NET_HEIGHT)
    distance = np.sqrt(x * x + dy * dy)
    touching = distance < reach
    if not touching.any():
        return
    np.maximum(distance, _TINY, out=distance)
    nx, ny = x / distance, dy / distance
    approach = vx * nx + vy * ny
    kick = np.where(touching, np.maximum(-(1 + NET_RESTITUTION) * approach, 0.0), 0.0)
    push = np.where(touching, reach - distance, 0.0)
    x += push * nx
    y += push * ny
    vx += kick * nx
    vy += kick * ny


def _limit_speed(ball: Floats) -> None:
    speed = np.sqrt(ball[VX] * ball[VX] + ball[VY] * ball[VY])
    ball[VX:] *= BALL_MAX_SPEED / np.maximum(speed, BALL_MAX_SPEED)


def _stay_inside(ball: Floats) -> NDArray[np.int8]:
    x, y, vx, vy = ball
    wall, ceiling = HALF_WIDTH - BALL_RADIUS, CEILING - BALL_RADIUS
    np.multiply(vx, -WALL_RESTITUTION, out=vx, where=(np.abs(x) > wall) & (x * vx > 0))
    np.clip(x, -wall, wall, out=x)
    np.multiply(vy, -WALL_RESTITUTION, out=vy, where=(y > ceiling) & (vy > 0))
    landed = y <= BALL_RADIUS
    np.multiply(vy, -FLOOR_RESTITUTION, out=vy, where=landed & (vy < 0))
    np.clip(y, BALL_RADIUS, ceiling, out=y)
    return np.where(landed, np.sign(x), 0.0).astype(np.int8)


OBSERVATION_NAMES: Final = (
    *("own_x", "own_y", "own_vx", "own_vy"),
    *("ball_x", "ball_y", "ball_vx", "ball_vy"),
    *("opponent_x", "opponent_y", "opponent_vx", "opponent_vy"),
)
OBSERVATION_SIZE: Final = len(OBSERVATION_NAMES)

_PLAYER_SCALE = (HALF_WIDTH, CEILING, PLAYER_SPEED, PLAYER_JUMP)
_BALL_SCALE = (HALF_WIDTH, CEILING, BALL_MAX_SPEED, BALL_MAX_SPEED)
SCALE: Final[Floats] = np.array([*_PLAYER_SCALE, *_BALL_SCALE, *_PLAYER_SCALE], dtype=np.float32)
"""[12] metres, or metres per second, that correspond to an observation of 1."""

_FLIP = np.array([-1, 1, -1, 1], dtype=np.float32).reshape(4, 1, 1)
_BALL_TO_FRAMES = np.array([[1, -1], [1, 1], [1, -1], [1, 1]], dtype=np.float32).reshape(4, 2, 1)


def observe(courts: Courts) -> Floats:
    """Return each player's observations [2, C, 12], within about [-1, 1]; x < 0 in the player's own half."""
    features = np.empty((3, 4, 2, courts.ball.shape[1]), dtype=np.float32)
    features[0] = courts.players
    np.multiply(courts.ball[:, None], _BALL_TO_FRAMES, out=features[1])
    np.multiply(courts.players[:, ::-1], _FLIP, out=features[2])
    seen = features.reshape(OBSERVATION_SIZE, 2, -1).transpose(1, 2, 0) / SCALE
    return np.ascontiguousarray(seen)


@dataclass(frozen=True, slots=True)
class CourtView:
    """Observations [d, 12] of d players, converted back to metres and seconds; each field is [4, d]: x, y, vx, vy."""

    own: Floats
    ball: Floats
    opponent: Floats

    @classmethod
    def of(cls, observations: Floats) -> CourtView:
        """Undo the scaling of `observe`."""
        metres = (observations * SCALE).T
        return cls(metres[:4], metres[4:8], metres[8:])

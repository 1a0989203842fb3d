"""Many courts at once: the state of players and balls, and one tick of their motion.

Pure mechanics, no rules: nothing here knows of points, serves or episodes (see `group`), or draws random numbers.
Axis letters: C courts; the players' arrays have a team axis of 2 before it.

The two sides are symmetric to the last bit. Each player's state is kept in the player's own frame, in which the
net is at x = 0, the own half has x < 0, and forward is +x; the frame of team 0 is also the ball's. Mirroring a
court swaps the team axis and negates the ball's x, and every expression below is built so that floating-point
rounding commutes with that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Floats
from headrace.stages.games.volley.rules import (
    BALL_GRAVITY,
    BALL_MAX_SPEED,
    BALL_MIN_REBOUND,
    BALL_RADIUS,
    CEILING,
    FLOOR_RESTITUTION,
    HALF_WIDTH,
    NET_HEIGHT,
    NET_RADIUS,
    NET_RESTITUTION,
    PLAYER_ACCELERATION,
    PLAYER_GRAVITY,
    PLAYER_JUMP,
    PLAYER_RADIUS,
    PLAYER_RESTITUTION,
    PLAYER_SPEED,
    TICK_S,
    WALL_RESTITUTION,
)

X, Y, VX, VY = range(4)
"""Rows of `Courts.ball` and `Courts.players`."""

_TO_BALL_FRAME = np.array([[1.0], [-1.0]], dtype=np.float32)
_TINY = 1e-6


@dataclass(frozen=True, slots=True)
class Courts:
    """The state of C courts; `advance` changes the arrays in place."""

    ball: Floats
    """[4, C] x, y, vx, vy of the ball in team 0's frame; metres, metres per second."""
    players: Floats
    """[4, 2, C] x, y, vx, vy of each team's player, in the player's own frame."""

    @classmethod
    def empty(cls, courts: int) -> Courts:
        """Return courts at zero, to be filled by a serve."""
        return cls(np.zeros((4, courts), np.float32), np.zeros((4, 2, courts), np.float32))


def advance(
    courts: Courts, move: Floats, jump: NDArray[np.bool_], ball_gravity: Floats | float = BALL_GRAVITY
) -> NDArray[np.int8]:
    """Move everything by one tick.

    Args:
        courts: changed in place.
        move: [2, C] -1 back, 0 stay, 1 forward, each in the player's own frame.
        jump: [2, C] true to jump if the player stands on the ground.
        ball_gravity: for all courts, or [C] for each; metres per second squared.

    Returns:
        [C] 0 while the ball is in the air, -1 where it touched the ground in team 0's half, 1 in team 1's.
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
    """Push the ball out of both players and give it the rebound of each, as seen by the moving player."""
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
    # Both teams' parts are joined before they meet the ball's state: that order survives mirroring exactly.
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

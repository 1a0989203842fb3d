"""The constants of the court and of its physics, in metres and seconds.

`physics` moves by them, `group` counts by them, `rendering` draws to their scale. They were tuned for short games that
skill decides; docs/volley.md describes the effect of each change.
"""

from __future__ import annotations

from typing import Final

TICK_S: Final = 0.02
"""Length of a physics tick; a decision lasts `frame_skip` of them."""

HALF_WIDTH: Final = 3.0
"""From the net (x = 0) to either wall."""
CEILING: Final = 2.75
NET_HEIGHT: Final = 0.9
NET_RADIUS: Final = 0.05
"""The net is a post with a round top: all points closer than this to the line from (0, 0) to (0, NET_HEIGHT)."""

PLAYER_RADIUS: Final = 0.34
PLAYER_SPEED: Final = 2.6
PLAYER_ACCELERATION: Final = 20.0
PLAYER_JUMP: Final = 3.8
"""Upward speed at take-off: 0.72 m high, 0.76 s in the air."""
PLAYER_GRAVITY: Final = 10.0

BALL_RADIUS: Final = 0.2
BALL_GRAVITY: Final = 6.5
"""Less than the players': a floating ball gives them time to think."""
BALL_MAX_SPEED: Final = 6.5
"""Below (BALL_RADIUS + NET_RADIUS) / TICK_S, so that the ball can't tunnel through the net."""
BALL_MIN_REBOUND: Final = 3.6
"""A player is springy: the ball leaves it at this speed at least, so that nobody carries the ball."""

PLAYER_RESTITUTION: Final = 0.95
WALL_RESTITUTION: Final = 0.85
NET_RESTITUTION: Final = 0.6
FLOOR_RESTITUTION: Final = 0.5
"""Only to be looked at: the rally is over."""

HOME: Final = 1.5
"""Distance from the net at which a player awaits the serve."""
SERVE_HEIGHT: Final = 2.0
SERVE_SPEED: Final = (0.7, 2.1)
"""Range of the serve's horizontal speed; it starts above the net, towards the side that receives."""
SERVE_RISE: Final = (0.4, 1.8)
"""Range of the serve's upward speed."""

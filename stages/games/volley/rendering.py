"""Pictures of a court: one state in, one RGB array out, drawn with Pillow.

Everything is drawn twice as large as asked for and then reduced, which smooths the edges. What never moves (sky,
hills, sand, net) is drawn once per size. Lengths in this module are metres until `_Canvas` makes pixels of them.
"""

from __future__ import annotations

from functools import lru_cache
from math import cos, hypot, pi, sin
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from headrace.stages.games.volley.physics import (
    BALL_RADIUS,
    CEILING,
    HALF_WIDTH,
    NET_HEIGHT,
    NET_RADIUS,
    PLAYER_JUMP,
    PLAYER_RADIUS,
    VY,
    Courts,
    X,
    Y,
)

DEFAULT_WIDTH: Final = 600
"""Pixels; the height is half of it."""

_GROUND: Final = 0.25
"""Height of the strip of sand below the court."""
_OVERSAMPLING: Final = 2

Colour = tuple[int, int, int]

_SKY_TOP: Final = np.array([98, 176, 232])
_SKY_LOW: Final = np.array([238, 240, 230])
_SUN, _FAR_HILLS, _NEAR_HILLS = (255, 246, 214), (168, 200, 196), (128, 176, 156)
_SAND, _SAND_EDGE, _SAND_SHADOW = (238, 210, 158), (214, 180, 124), (204, 172, 120)
_NET, _NET_BAND = (92, 84, 96), (250, 250, 250)
_TEAMS: Final[tuple[tuple[Colour, Colour], ...]] = (
    ((242, 112, 89), (178, 62, 52)),
    ((64, 132, 214), (32, 78, 150)),
)
"""Fill and outline of each team's player."""
_BALL, _BALL_LINE = (255, 240, 178), (176, 132, 52)
_WHITE, _INK = (255, 255, 255), (42, 40, 52)

LIVELY_COLOURS: Final[tuple[Colour, ...]] = (
    *_TEAMS[0],
    *_TEAMS[1],
    _BALL,
    _BALL_LINE,
    _WHITE,
    _INK,
    _SUN,
    _SAND_SHADOW,
)
"""Colours that a palette must keep, however few pixels have them."""


class _Canvas:
    """Draws in metres onto a picture whose bottom edge is the lower end of the sand."""

    def __init__(self, image: Image.Image) -> None:
        self._pen = ImageDraw.Draw(image)
        self._scale = image.width / (2 * HALF_WIDTH)
        self._floor = image.height - _GROUND * self._scale

    def pixel(self, x: float, y: float) -> tuple[float, float]:
        return (x + HALF_WIDTH) * self._scale, self._floor - y * self._scale

    def ellipse(
        self,
        x: float,
        y: float,
        rx: float,
        ry: float,
        fill: Colour | None,
        line: Colour | None = None,
        width: float = 0.02,
    ) -> None:
        left, top = self.pixel(x - rx, y + ry)
        right, bottom = self.pixel(x + rx, y - ry)
        self._pen.ellipse((left, top, right, bottom), fill, line, self._stroke(width) if line else 0)

    def curve(self, points: list[tuple[float, float]], colour: Colour, width: float) -> None:
        self._pen.line([self.pixel(x, y) for x, y in points], colour, self._stroke(width), joint="curve")

    def area(self, points: list[tuple[float, float]], colour: Colour) -> None:
        self._pen.polygon([self.pixel(x, y) for x, y in points], colour)

    def _stroke(self, width: float) -> int:
        return max(1, round(width * self._scale))


def draw(
    courts: Courts, score: NDArray[np.int32], env_id: int, points_to_win: int, width: int = DEFAULT_WIDTH
) -> NDArray[np.uint8]:
    """Draw one court.

    Args:
        courts: the state of all courts.
        score: [2, C] points of each team.
        env_id: number of the court.
        points_to_win: number of lamps of a team's score.
        width: of the picture in pixels, even; the height is half of it.

    Returns:
        [width / 2, width, 3] RGB.
    """
    image = _backdrop(width).copy()
    canvas = _Canvas(image)
    ball_x, ball_y = (float(courts.ball[row, env_id]) for row in (X, Y))
    stands = [(float(courts.players[X, team, env_id]) * (1 - 2 * team), team) for team in (0, 1)]
    _shadow(canvas, ball_x, ball_y - BALL_RADIUS, BALL_RADIUS)
    for x, team in stands:
        _shadow(canvas, x, float(courts.players[Y, team, env_id]) - PLAYER_RADIUS, PLAYER_RADIUS)
    for x, team in stands:
        y, vy = (float(courts.players[row, team, env_id]) for row in (Y, VY))
        _draw_player(canvas, x, y, vy, team, (ball_x, ball_y))
    _draw_ball(canvas, ball_x, ball_y)
    for team in (0, 1):
        _draw_score(canvas, team, int(score[team, env_id]), points_to_win)
    return np.asarray(image.reduce(_OVERSAMPLING))


@lru_cache(maxsize=4)
def _backdrop(width: int) -> Image.Image:
    wide, high = width * _OVERSAMPLING, width * _OVERSAMPLING // 2
    share = np.linspace(0, 1, high)[:, None, None] ** 0.8
    sky = _SKY_TOP + (_SKY_LOW - _SKY_TOP) * share
    image = Image.fromarray(np.broadcast_to(sky, (high, wide, 3)).astype(np.uint8))
    canvas = _Canvas(image)
    canvas.ellipse(1.9, 2.05, 0.26, 0.26, _SUN)
    _hills(canvas, 0.62, 0.16, 1.3, 0.4, _FAR_HILLS)
    _hills(canvas, 0.34, 0.12, 2.1, 2.0, _NEAR_HILLS)
    edges = (-HALF_WIDTH, HALF_WIDTH)
    canvas.area([(edges[0], 0.05), (edges[1], 0.05), (edges[1], -_GROUND), (edges[0], -_GROUND)], _SAND)
    canvas.curve([(edges[0], 0.05), (edges[1], 0.05)], _SAND_EDGE, 0.02)
    _draw_net(canvas)
    return image


def _hills(canvas: _Canvas, height: float, swing: float, frequency: float, phase: float, colour: Colour) -> None:
    xs = np.linspace(-HALF_WIDTH, HALF_WIDTH, 121)
    ridge = height + swing * np.sin(frequency * xs + phase) + swing / 2 * np.sin(2.3 * frequency * xs)
    canvas.area([(-HALF_WIDTH, 0.0), *zip(xs, ridge, strict=True), (HALF_WIDTH, 0.0)], colour)


def _draw_net(canvas: _Canvas) -> None:
    post = [(-NET_RADIUS, 0.0), (-NET_RADIUS, NET_HEIGHT), (NET_RADIUS, NET_HEIGHT), (NET_RADIUS, 0.0)]
    canvas.area(post, _NET)
    canvas.ellipse(0.0, NET_HEIGHT, NET_RADIUS, NET_RADIUS, _NET)
    for y in np.arange(0.12, NET_HEIGHT - 0.12, 0.1):
        canvas.curve([(-NET_RADIUS, y), (NET_RADIUS, y + 0.05)], (140, 132, 144), 0.012)
    band = NET_HEIGHT - 0.1
    canvas.area(
        [(-NET_RADIUS, band), (-NET_RADIUS, band + 0.09), (NET_RADIUS, band + 0.09), (NET_RADIUS, band)],
        _NET_BAND,
    )


def _shadow(canvas: _Canvas, x: float, height: float, radius: float) -> None:
    """Draw a shadow, smaller the higher the thing is."""
    size = radius * max(0.35, 1 - 0.28 * height)
    canvas.ellipse(x, -0.02, size, 0.05 * size / radius, _SAND_SHADOW)


def _draw_player(canvas: _Canvas, x: float, y: float, vy: float, team: int, ball: tuple[float, float]) -> None:
    fill, line = _TEAMS[team]
    forward = 1 - 2 * team
    stretch = 0.1 * min(abs(vy) / PLAYER_JUMP, 1.0)
    rx, ry = PLAYER_RADIUS * (1 - stretch), PLAYER_RADIUS * (1 + stretch)
    for foot in (-0.14, 0.14):
        canvas.ellipse(x + foot + 0.03 * forward, y - ry + 0.03, 0.1, 0.055, line)
    canvas.ellipse(x, y, rx, ry, fill, line, 0.025)
    lighter = tuple(min(255, c + 28) for c in fill)
    canvas.ellipse(x - 0.1 * forward, y + 0.16, 0.09, 0.06, (lighter[0], lighter[1], lighter[2]))
    for eye in (0.0, 0.17):
        _draw_eye(canvas, x + forward * (eye + 0.02), y + 0.07, ball)
    smile = [(x + forward * (0.06 + 0.1 * t), y - 0.12 - 0.03 * sin(pi * t)) for t in np.linspace(0, 1, 7)]
    canvas.curve(smile, line, 0.025)


def _draw_eye(canvas: _Canvas, x: float, y: float, ball: tuple[float, float]) -> None:
    canvas.ellipse(x, y, 0.078, 0.095, _WHITE)
    dx, dy = ball[0] - x, ball[1] - y
    reach = 0.038 / max(hypot(dx, dy), 0.1)
    canvas.ellipse(x + dx * reach, y + dy * reach, 0.042, 0.048, _INK)


def _draw_ball(canvas: _Canvas, x: float, y: float) -> None:
    """Draw a ball with three bent seams that turns as if it rolled."""
    canvas.ellipse(x, y, BALL_RADIUS, BALL_RADIUS, _BALL, _BALL_LINE, 0.025)
    for seam in range(3):
        turn = -x / BALL_RADIUS + seam * 2 * pi / 3
        points = [(t * BALL_RADIUS, turn + 0.7 * t) for t in np.linspace(0, 0.95, 8)]
        canvas.curve([(x + r * cos(a), y + r * sin(a)) for r, a in points], _BALL_LINE, 0.02)


def _draw_score(canvas: _Canvas, team: int, points: int, points_to_win: int) -> None:
    """Draw a row of lamps in the upper corner; they light up from the wall inwards."""
    fill, line = _TEAMS[team]
    side = 2 * team - 1
    gap = min(0.22, 2.4 / points_to_win)
    for lamp in range(points_to_win):
        x = side * (HALF_WIDTH - 0.2 - gap * lamp)
        canvas.ellipse(x, CEILING - 0.18, gap * 0.36, gap * 0.36, fill if lamp < points else _WHITE, line, 0.02)

"""Volley on a screen: a court as shapes, the players' keys, and their names."""

from __future__ import annotations

from math import cos, hypot, pi, sin
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.stages.games.scene import Display, Scene, Shape, area, choices, disc, stroke
from headrace.stages.games.volley.physics import (
    BALL_RADIUS,
    CEILING,
    HALF_WIDTH,
    NET_HEIGHT,
    NET_RADIUS,
    PLAYER_JUMP,
    PLAYER_RADIUS,
    TICK_S,
    VY,
    Courts,
    X,
    Y,
)

_GROUND: Final = 0.25
_TEAMS: Final = (("#f27059", "#b23e34", "#ff8c75"), ("#4084d6", "#204e96", "#5ca0f2"))
"""Fill, outline and highlight of each team's player."""
_NAMES: Final = ("red, left", "blue, right")
_SHADOW, _BALL, _SEAM, _WHITE, _INK = "#ccac78", "#fff0b2", "#b08434", "#ffffff", "#2a2834"
LIVELY_COLOURS: Final = (*_TEAMS[0][:2], *_TEAMS[1][:2], _BALL, _SEAM, _WHITE, _INK, "#fff6d6", _SHADOW)
"""Colours that a palette must keep, however few pixels have them; the second to last is the sun's colour."""
_BACK, _STAY, _FORWARD = 0, 1, 2


def display(behavior_ids: tuple[str, str], points_to_win: int) -> Display:
    """Return the fixed parts of the display. The player on the right walks forward to the left."""
    moves = ((_BACK, _FORWARD), (_FORWARD, _BACK))
    keys = {
        behavior_id: choices(
            (_STAY, 0),
            ArrowLeft=(0, left),
            ArrowRight=(0, right),
            ArrowUp=(1, 1),
            a=(0, left),
            d=(0, right),
            w=(1, 1),
            Space=(1, 1),
        )
        for behavior_id, (left, right) in zip(behavior_ids, moves, strict=True)
    }
    return Display(
        TICK_S,
        (-HALF_WIDTH, -_GROUND, 2 * HALF_WIDTH, CEILING + _GROUND),
        ("#62b0e8", "#eef0e6"),
        _backdrop(),
        dict(zip(behavior_ids, _NAMES, strict=True)),
        keys,
        f"first to {points_to_win} wins",
    )


def scene(courts: Courts, score: NDArray[np.int32], behavior_ids: tuple[str, str], env_id: int) -> Scene:
    """Return a court's current appearance."""
    ball_x, ball_y = (float(courts.ball[row, env_id]) for row in (X, Y))
    stands = [(float(courts.players[X, team, env_id]) * (1 - 2 * team), team) for team in (0, 1)]
    shapes = [_shadow(ball_x, ball_y - BALL_RADIUS, BALL_RADIUS)]
    shapes += [_shadow(x, float(courts.players[Y, team, env_id]) - PLAYER_RADIUS, PLAYER_RADIUS) for x, team in stands]
    for x, team in stands:
        y, vy = (float(courts.players[row, team, env_id]) for row in (Y, VY))
        shapes += _player(x, y, vy, team, (ball_x, ball_y))
    shapes += _ball(ball_x, ball_y)
    points = {behavior_id: int(score[team, env_id]) for team, behavior_id in enumerate(behavior_ids)}
    heads = {behavior_ids[team]: (x, float(courts.players[Y, team, env_id]) + PLAYER_RADIUS) for x, team in stands}
    return Scene(shapes, points, heads)


def lamps(score: NDArray[np.int32], points_to_win: int) -> list[Shape]:
    """Return a court's points [2] as rows of lamps in the upper corners, which light up from the wall inwards."""
    gap = min(0.22, 2.4 / points_to_win)
    return [
        disc(
            (2 * team - 1) * (HALF_WIDTH - 0.2 - gap * lamp),
            CEILING - 0.18,
            gap * 0.36,
            gap * 0.36,
            fill if lamp < score[team] else _WHITE,
            line,
            0.02,
        )
        for team, (fill, line, _) in enumerate(_TEAMS)
        for lamp in range(points_to_win)
    ]


def _backdrop() -> list[Shape]:
    edges = (-HALF_WIDTH, HALF_WIDTH)
    post = [(-NET_RADIUS, 0.0), (-NET_RADIUS, NET_HEIGHT), (NET_RADIUS, NET_HEIGHT), (NET_RADIUS, 0.0)]
    band = NET_HEIGHT - 0.1
    return [
        disc(1.9, 2.05, 0.26, 0.26, "#fff6d6"),
        _hills(0.62, 0.16, 1.3, 0.4, "#a8c8c4"),
        _hills(0.34, 0.12, 2.1, 2.0, "#80b09c"),
        area([(edges[0], 0.05), (edges[1], 0.05), (edges[1], -_GROUND), (edges[0], -_GROUND)], "#eed29e"),
        stroke([(edges[0], 0.05), (edges[1], 0.05)], "#d6b47c", 0.02),
        area(post, "#5c5460"),
        disc(0.0, NET_HEIGHT, NET_RADIUS, NET_RADIUS, "#5c5460"),
        *(stroke([(-NET_RADIUS, y), (NET_RADIUS, y + 0.05)], "#8c8490", 0.012) for y in np.arange(0.12, 0.78, 0.1)),
        area([(post[0][0], band), (post[0][0], band + 0.09), (post[2][0], band + 0.09), (post[2][0], band)], "#fafafa"),
    ]


def _hills(height: float, swing: float, frequency: float, phase: float, colour: str) -> Shape:
    xs = np.linspace(-HALF_WIDTH, HALF_WIDTH, 61)
    ridge = height + swing * np.sin(frequency * xs + phase) + swing / 2 * np.sin(2.3 * frequency * xs)
    return area([(-HALF_WIDTH, 0.0), *zip(xs, ridge, strict=True), (HALF_WIDTH, 0.0)], colour)


def _shadow(x: float, height: float, radius: float) -> Shape:
    size = radius * max(0.35, 1 - 0.28 * height)
    return disc(x, -0.02, size, 0.05 * size / radius, _SHADOW)


def _player(x: float, y: float, vy: float, team: int, ball: tuple[float, float]) -> list[Shape]:
    fill, line, lighter = _TEAMS[team]
    forward = 1 - 2 * team
    stretch = 0.1 * min(abs(vy) / PLAYER_JUMP, 1.0)
    rx, ry = PLAYER_RADIUS * (1 - stretch), PLAYER_RADIUS * (1 + stretch)
    smile = [(x + forward * (0.06 + 0.1 * t), y - 0.12 - 0.03 * sin(pi * t)) for t in np.linspace(0, 1, 7)]
    eyes = [_eye(x + forward * (eye + 0.02), y + 0.07, ball) for eye in (0.0, 0.17)]
    return [
        *(disc(x + foot + 0.03 * forward, y - ry + 0.03, 0.1, 0.055, line) for foot in (-0.14, 0.14)),
        disc(x, y, rx, ry, fill, line, 0.025),
        disc(x - 0.1 * forward, y + 0.16, 0.09, 0.06, lighter),
        *(shape for eye in eyes for shape in eye),
        stroke(smile, line, 0.025),
    ]


def _eye(x: float, y: float, ball: tuple[float, float]) -> list[Shape]:
    dx, dy = ball[0] - x, ball[1] - y
    reach = 0.038 / max(hypot(dx, dy), 0.1)
    return [disc(x, y, 0.078, 0.095, _WHITE), disc(x + dx * reach, y + dy * reach, 0.042, 0.048, _INK)]


def _ball(x: float, y: float) -> list[Shape]:
    """Return a ball with three curved seams, turned as if it rolled."""
    shapes = [disc(x, y, BALL_RADIUS, BALL_RADIUS, _BALL, _SEAM, 0.025)]
    for seam in range(3):
        turn = -x / BALL_RADIUS + seam * 2 * pi / 3
        points = [(t * BALL_RADIUS, turn + 0.7 * t) for t in np.linspace(0, 0.95, 6)]
        shapes.append(stroke([(x + r * cos(a), y + r * sin(a)) for r, a in points], _SEAM, 0.02))
    return shapes

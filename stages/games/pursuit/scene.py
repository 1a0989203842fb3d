"""Pursuit on a screen: the arena from above, the players' keys, and their names."""

from __future__ import annotations

from itertools import product
from typing import Final

import numpy as np

from headrace.config.environment import KeyMapSettings
from headrace.queues.messages import Floats
from headrace.stages.games.pursuit.motion import DIRECTIONS, EVADER, HALF_WIDTH, PURSUERS, TICK_S
from headrace.stages.games.scene import Display, Scene, area, disc, stroke

_MARGIN: Final = 0.08
_PURSUER, _EVADER, _EDGE, _FLOOR = "#d1495b", "#2f9e6e", "#3a4250", "#f4f1ea"
_SIZE: Final = 0.045


def display(pursuer_id: str, evader_id: str) -> Display:
    """Return the fixed parts of the display."""
    inner, outer = HALF_WIDTH + 0.03, HALF_WIDTH + _MARGIN
    corners = [(-inner, -inner), (inner, -inner), (inner, inner), (-inner, inner)]
    return Display(
        TICK_S,
        (-outer, -outer, 2 * outer, 2 * outer),
        ("#dcd6ca", "#dcd6ca"),
        [area(corners, _FLOOR), stroke([*corners, corners[0]], _EDGE, 0.02)],
        {pursuer_id: "pursuers, red", evader_id: "evader, green"},
        dict.fromkeys((pursuer_id, evader_id), _keys()),
        "the evader wins when the bar is empty",
    )


def scene(ids: tuple[str, str], places: Floats, speeds: Floats, time_left: float, caught_at: float) -> Scene:
    """Return an arena's current appearance.

    Args:
        ids: the behaviour ids of the pursuers and the evader.
        places: [3, 2] the agents' positions.
        speeds: [3, 2] the agents' velocities.
        time_left: the fraction of the game's time that is left.
        caught_at: distance at which the evader is caught.
    """
    shapes = [
        disc(float(places[number, 0]), float(places[number, 1]), caught_at, caught_at, "#d1495b2e")
        for number in range(PURSUERS)
    ]
    for number in range(len(places)):
        (x, y), ahead = places[number], 0.12 * speeds[number]
        colour = _EVADER if number == EVADER else _PURSUER
        shapes.append(stroke([(x, y), (x + ahead[0], y + ahead[1])], colour, 0.015))
        shapes.append(disc(x, y, _SIZE, _SIZE, colour, _EDGE, 0.008))
    wide, top = 2 * HALF_WIDTH * time_left, HALF_WIDTH + 0.055
    shapes.append(stroke([(-HALF_WIDTH, top), (-HALF_WIDTH + wide, top)], _EVADER, 0.02))
    firsts = zip(ids, (0, EVADER), strict=True)
    return Scene(shapes, {}, {each: (float(places[at, 0]), float(places[at, 1]) + _SIZE) for each, at in firsts})


def _keys() -> KeyMapSettings:
    """Return arrow keys for the four directions; two keys pressed together mean the direction between them."""
    arrows = {"ArrowRight": (1, 0), "ArrowLeft": (-1, 0), "ArrowUp": (0, 1), "ArrowDown": (0, -1)}
    press = {key: {"branch": 0, "value": _direction(*way)} for key, way in arrows.items()}
    for (first, way), (second, other) in product(list(arrows.items())[:2], list(arrows.items())[2:]):
        press[f"{first}+{second}"] = {"branch": 0, "value": _direction(way[0] + other[0], way[1] + other[1])}
    return KeyMapSettings.model_validate({"press": press})


def _direction(x: int, y: int) -> int:
    return int(np.argmax(DIRECTIONS[1:] @ np.array([x, y], np.float32))) + 1

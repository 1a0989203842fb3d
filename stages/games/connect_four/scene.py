"""Connect Four on a screen: the board, and a key for each column."""

from __future__ import annotations

from typing import Final

import numpy as np

from headrace.config.environment import KeyMapSettings, KeySettings
from headrace.stages.games.connect_four import rules
from headrace.stages.games.connect_four.rules import Stones
from headrace.stages.games.scene import Display, Scene, area, disc

_MOVE_S: Final = 0.6
"""Seconds between two moves if both players need no time to think."""
_MARGIN: Final = 0.35
_COLOURS: Final = ("#e5584a", "#f3c73f")
_LINES: Final = ("#b23e34", "#c49a1c")
_BOARD, _HOLE = "#2d5fb3", "#e8edf4"
_NAMES: Final = ("red", "yellow")


def display(behavior_ids: tuple[str, ...]) -> Display:
    """Return the fixed parts of the display."""
    wide, high = float(rules.COLUMNS), float(rules.ROWS)
    edge = 0.12
    corners = [(-edge, -edge), (wide + edge, -edge), (wide + edge, high + edge), (-edge, high + edge)]
    holes = [disc(x + 0.5, y + 0.5, 0.4, 0.4, _HOLE) for x in range(rules.COLUMNS) for y in range(rules.ROWS)]
    press = {str(column + 1): KeySettings(branch=0, value=column) for column in range(rules.COLUMNS)}
    return Display(
        _MOVE_S,
        (-_MARGIN, -_MARGIN, wide + 2 * _MARGIN, high + 2 * _MARGIN),
        ("#eef2f7", "#dde5ef"),
        [area(corners, _BOARD), *holes],
        dict(zip(behavior_ids, _NAMES, strict=True)),
        dict.fromkeys(behavior_ids, KeyMapSettings(press=press, wait=True)),
        "four in a row wins",
    )


def scene(first: Stones, second: Stones) -> Scene:
    """Return a board's appearance, given the stones of both teams, each [1]."""
    planes = rules.to_planes(first, second).reshape(rules.ROWS, rules.COLUMNS, 2)
    shapes = [
        disc(x + 0.5, rules.ROWS - 0.5 - row, 0.4, 0.4, _COLOURS[team], _LINES[team], 0.05)
        for row, x, team in np.argwhere(planes)
    ]
    return Scene(shapes)

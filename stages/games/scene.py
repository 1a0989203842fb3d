"""Scenes: the appearance of a built-in game, as a few shapes in the game's own units, which can be drawn at any size.

A shape is a list of plain data, ready to send. Points are (x, y) with y pointing up; colours are as in CSS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from headrace.config.environment import KeyMapSettings, KeySettings

Shape = list[Any]
Points = Sequence[tuple[float, float]]


def disc(x: float, y: float, rx: float, ry: float, fill: str | None, line: str = "", width: float = 0.0) -> Shape:
    """Return an ellipse with semi-axes `rx` and `ry`."""
    return ["disc", _cut(x), _cut(y), _cut(rx), _cut(ry), fill, line, width]


def area(points: Points, fill: str) -> Shape:
    """Return a filled polygon."""
    return ["area", [[_cut(x), _cut(y)] for x, y in points], fill]


def stroke(points: Points, line: str, width: float) -> Shape:
    """Return a line through points, with round ends."""
    return ["stroke", [[_cut(x), _cut(y)] for x, y in points], line, width]


def _cut(number: float) -> float:
    """Round to a thousandth of a unit, which is less than a pixel."""
    return round(float(number), 3)


@dataclass(frozen=True, slots=True)
class Scene:
    """A game's appearance at one moment."""

    shapes: list[Shape]
    """The moving shapes in front of the backdrop, ordered from back to front."""
    score: Mapping[str, int] = field(default_factory=dict)
    """Points in the running game, keyed by behaviour id; empty for a game without points."""
    heads: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Position of the top of each behaviour id's first agent, which a person may play.

    Empty if the scene states no positions.
    """


@dataclass(frozen=True, slots=True)
class Display:
    """The fixed parts of a game on a screen."""

    frame_s: float
    """Seconds between two scenes, at the game's own pace."""
    view: tuple[float, float, float, float]
    """Left, bottom, width and height of the visible area."""
    sky: tuple[str, str]
    """Colours of the background at the top and at the bottom."""
    backdrop: list[Shape]
    """The shapes behind all scenes."""
    sides: Mapping[str, str]
    """The displayed name for each behaviour id's agents."""
    keys: Mapping[str, KeyMapSettings]
    """The keys of a person who plays, keyed by the behaviour id that they play."""
    aim: str = ""
    """The goal of the game, as shown to players."""


@runtime_checkable
class SupportsScenes(Protocol):
    """A group that draws itself as scenes."""

    on_tick: Any
    """Function that is called without arguments after each tick that is worth showing; None to call nothing."""

    @property
    def display(self) -> Display:
        """The fixed parts of the display."""
        ...

    def scene(self, env_id: int = 0) -> Scene:
        """Return one instance's current appearance."""
        ...


def choices(rest: Sequence[int], wait: bool = False, **keys: tuple[int, int]) -> KeyMapSettings:
    """Return a map from keys to a branch and a choice.

    Args:
        rest: the choices while no key is pressed.
        wait: whether the game waits for a key.
        **keys: (branch, choice) by key.
    """
    press = {key: KeySettings(branch=branch, value=value) for key, (branch, value) in keys.items()}
    return KeyMapSettings(press=press, rest=tuple(rest), wait=wait)

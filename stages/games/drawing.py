"""Renders built-in games' scenes as images with Pillow, to match the live page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageDraw

from headrace.stages.games.scene import Display, Shape

WIDTH = 600
_OVERSAMPLING = 2
"""Factor by which images are drawn larger than needed. Reducing the drawn images smooths edges."""


class SceneImages:
    """Draws a game's scenes in front of the game's fixed parts.

    Args:
        display: the fixed parts.
        width: image width in pixels; the width is reduced if the image would be taller than wide.
    """

    def __init__(self, display: Display, width: int = WIDTH) -> None:
        self._left, self._bottom, wide, high = display.view
        self._scale = _OVERSAMPLING * width / max(wide, high)
        # Videos need an even number of pixels in each direction.
        size = (_even(width * wide / max(wide, high)), _even(width * high / max(wide, high)))
        self._behind = _sky(display.sky, (size[0] * _OVERSAMPLING, size[1] * _OVERSAMPLING))
        self._draw(self._behind, display.backdrop)

    def image(self, shapes: Sequence[Shape]) -> NDArray[np.uint8]:
        """Draw a scene; return an RGB image [height, width, 3]."""
        canvas = self._behind.copy()
        self._draw(canvas, shapes)
        return np.asarray(canvas.reduce(_OVERSAMPLING), np.uint8)

    def _draw(self, canvas: Image.Image, shapes: Sequence[Shape]) -> None:
        pen = ImageDraw.Draw(canvas, "RGBA")
        for kind, *values in shapes:
            if kind == "disc":
                self._disc(pen, *values)
            elif kind == "area":
                pen.polygon(self._points(values[0]), _colour(values[1]))
            else:
                points, line, width = values
                self._stroke(pen, self._points(points), _colour(line), max(1.0, width * self._scale))

    def _disc(
        self,
        pen: ImageDraw.ImageDraw,
        x: float,
        y: float,
        rx: float,
        ry: float,
        fill: str | None,
        line: str,
        width: float,
    ) -> None:
        ((left, top), (right, bottom)) = self._points([(x - rx, y + ry), (x + rx, y - ry)])
        inked = round(max(1.0, width * self._scale)) if line and width else 0
        if inked:  # a stroke is half outside its edge here, but Pillow draws it entirely inside
            left, top, right, bottom = left - inked / 2, top - inked / 2, right + inked / 2, bottom + inked / 2
        pen.ellipse((left, top, right, bottom), _colour(fill), _colour(line) if inked else None, inked)

    def _stroke(self, pen: ImageDraw.ImageDraw, points: list[tuple[float, float]], colour: Any, width: float) -> None:
        pen.line(points, colour, round(width), joint="curve")
        for x, y in (points[0], points[-1]):
            pen.ellipse((x - width / 2, y - width / 2, x + width / 2, y + width / 2), colour)

    def _points(self, points: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
        height = self._behind.height
        return [((x - self._left) * self._scale, height - (y - self._bottom) * self._scale) for x, y in points]


def _sky(colours: tuple[str, str], size: tuple[int, int]) -> Image.Image:
    top, low = (np.array(ImageColor.getrgb(colour)[:3], np.float64) for colour in colours)
    share = np.linspace(0, 1, size[1])[:, None]
    rows = (top + (low - top) * share).round().astype(np.uint8)
    return Image.fromarray(np.repeat(rows[:, None], size[0], axis=1))


def _colour(colour: str | None) -> Any:
    return ImageColor.getrgb(colour) if colour else None


def _even(pixels: float) -> int:
    return 2 * max(1, round(pixels / 2))

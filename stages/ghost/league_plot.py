"""A plot of a league, drawn with Pillow: the learner's results over time against each snapshot.

A row is the time from one snapshot of the learner to the next, downwards; a column is an opponent's snapshot. Blue:
mostly won, white: even, orange: mostly lost (which colour-blind people can tell apart), grey: never met.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Opponent = tuple[str, int, int | str]
"""The behaviour, 0 for its policies and 1 for its brains, and which of them."""

_WON, _EVEN, _LOST = np.array([33, 102, 172]), np.array([247, 247, 247]), np.array([217, 95, 14])
_NEVER, _INK, _PAPER = (214, 214, 214), (40, 40, 40), (255, 255, 255)
_MOST_CELLS: Final = 300
"""Rows or columns at most; neighbours in longer leagues are summed."""
_LARGEST_CELL, _PICTURE = 44, 640
"""Pixels."""
_TEXT_CELL = 30
"""Pixels from which on a cell shows its score as text."""
_MARGIN, _LINE = 12, 14


def draw_league(report: Mapping[str, Any]) -> bytes:
    """The matrix of a `league.report` as a PNG file."""
    columns = sorted({_opponent(entry) for entry in report["results"]})
    rows = 1 + max((entry["since"] for entry in report["results"]), default=0)
    counts = np.zeros((rows, len(columns), 3))
    place = {column: at for at, column in enumerate(columns)}
    for entry in report["results"]:
        at = place[_opponent(entry)]
        counts[entry["since"], at] += (entry["won"], entry["drawn"], entry["lost"])
    every = max(1, -(-rows // _MOST_CELLS), -(-len(columns) // _MOST_CELLS))
    heading = (
        f"{report['behavior']}: rating {report['rating']:.0f}, {len(report['snapshots'])} snapshots",
        "rows: the learner since its snapshot; columns: whom it met; blue won, orange lost",
    )
    since = [f"since {row}" for row in range(0, rows, every)]
    return _png(_draw(heading, since, [_label(column) for column in columns[::every]], _pooled(counts, every)))


def draw_matrix(heading: Sequence[str], names: Sequence[str], counts: NDArray[np.float64]) -> bytes:
    """The results of everybody [P] against everybody as a PNG file.

    Args:
        heading: lines above it.
        names: of rows and columns.
        counts: [P, P, 3] games that the row's player has won, drawn and lost against the column's.
    """
    return _png(_draw(heading, names, names, counts))


def _opponent(entry: Mapping[str, Any]) -> Opponent:
    """The opponent of an entry; those that do not learn stand behind all snapshots."""
    brain = entry.get("brain")
    return (entry["against"], 0, entry["snapshot"]) if brain is None else (entry["against"], 1, brain)


def _label(opponent: Opponent) -> str:
    name, _, player = opponent
    return f"{name} newest" if player == -1 else f"{name} {player}"


def _pooled(counts: NDArray[np.float64], every: int) -> NDArray[np.float64]:
    """Sums of blocks of `every` rows and columns."""
    if every == 1:
        return counts
    rows, columns = (range(0, size, every) for size in counts.shape[:2])
    return np.add.reduceat(np.add.reduceat(counts, rows, axis=0), columns, axis=1)


def _draw(
    heading: Sequence[str], names: Sequence[str], labels: Sequence[str], counts: NDArray[np.float64]
) -> Image.Image:
    """Draw cells [rows, columns, 3], with a name before each row and a label below each column."""
    rows, width = counts.shape[:2]
    cell = max(2, min(_LARGEST_CELL, _PICTURE // max(rows, width, 1)))
    font = ImageFont.load_default()
    gap = max(1, -(-_LINE // cell))  # cells from one label to the next
    left = _MARGIN + 8 + max((int(font.getlength(name)) for name in names), default=0)
    below = 8 + max((int(font.getlength(label)) for label in labels), default=0)
    top = _MARGIN + _LINE * len(heading) + 6
    wide = max(left + cell * width, *(_MARGIN + int(font.getlength(line)) for line in heading)) + _MARGIN
    image = Image.new("RGB", (wide, top + cell * rows + below + _MARGIN), _PAPER)
    pen = ImageDraw.Draw(image)
    for at, line in enumerate(heading):
        pen.text((_MARGIN, _MARGIN + at * _LINE), line, _INK, font)
    for row in range(rows):
        if row % gap == 0:
            pen.text((_MARGIN, top + row * cell + cell / 2), names[row], _INK, font, anchor="lm")
        for column in range(width):
            _draw_cell(pen, (left + column * cell, top + row * cell), cell, counts[row, column], font)
    for column in range(0, width, gap):
        _write_upwards(image, labels[column], (left + column * cell + cell // 2, top + rows * cell + 6), font)
    return image


def _draw_cell(
    pen: ImageDraw.ImageDraw, corner: tuple[int, int], size: int, counts: NDArray[np.float64], font: Any
) -> None:
    x, y = corner
    games, edge = counts.sum(), 2 if size > 4 else 1
    score = (counts[0] + 0.5 * counts[1]) / games if games else 0.5
    pen.rectangle((x, y, x + size - edge, y + size - edge), _colour(score) if games else _NEVER)
    if games and size >= _TEXT_CELL:
        ink = _INK if 0.2 < score < 0.8 else _PAPER
        pen.text((x + size / 2 - 1, y + size / 2 - 1), f"{100 * score:.0f}%", ink, font, anchor="mm")


def _colour(score: float) -> tuple[int, int, int]:
    end, share = (_WON, 2 * score - 1) if score > 0.5 else (_LOST, 1 - 2 * score)
    red, green, blue = (_EVEN + share * (end - _EVEN)).round().astype(int).tolist()
    return red, green, blue


def _write_upwards(image: Image.Image, text: str, at: tuple[int, int], font: Any) -> None:
    """Text that reads upwards, its end at the top centre `at`."""
    label = Image.new("RGB", (int(font.getlength(text)) + 2, _LINE), _PAPER)
    ImageDraw.Draw(label).text((label.width, _LINE / 2), text, _INK, font, anchor="rm")
    turned = label.transpose(Image.Transpose.ROTATE_90)
    image.paste(turned, (at[0] - turned.width // 2, at[1]))


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()

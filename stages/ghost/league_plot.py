"""Draws plots of leagues with Pillow, both for self-play and for several learners (`league_chart`).

In self-play, each row covers the time from one of the learner's snapshots to the next, from top to bottom, and each
column is an opponent's snapshot. Blue means mostly won, white even, orange mostly lost, and grey no games; the colours
are colour-blind safe.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from headrace.stages.ghost.league_chart import Cell, chart_of

Opponent = tuple[str, int, int | str]
"""(behaviour name, 0 for a policy or 1 for a brain, snapshot number or brain name)."""

_WON, _EVEN, _LOST = np.array([33, 102, 172]), np.array([247, 247, 247]), np.array([217, 95, 14])
_NEVER, _INK, _PAPER = (214, 214, 214), (40, 40, 40), (255, 255, 255)
_MOST_CELLS: Final = 300
"""The maximum number of rows or columns; in a larger league, neighbouring rows and columns are added up."""
_MOST_PLAYERS = 60
"""The maximum number of rows or columns in a league with several learners, whose cells contain text."""
_LARGEST_CELL, _PICTURE = 44, 640
"""Largest size of a cell, and target size of the matrix, in pixels."""
_TEXT_CELL = 30
"""Size, in pixels, of the smallest cell that shows its score as text."""
_MARGIN, _LINE, _TITLE, _ARCS = 12, 14, 22, 90
_LINK = (120, 120, 120)


def draw_league(report: Mapping[str, Any]) -> bytes:
    """Draw a league's report as a PNG file, either for self-play (`league.report`) or for several learners."""
    if "players" in report:
        chart = chart_of(report, _MOST_PLAYERS)
        parts = [(part["title"], part["rows"], part["cells"]) for part in chart["parts"]]
        return _draw_parts(chart["heading"], parts, chart["columns"], chart["descent"])
    columns = sorted({_opponent(entry) for entry in report["results"]})
    rows = 1 + max((entry["since"] for entry in report["results"]), default=0)
    counts = np.zeros((rows, len(columns), 3))
    place = {column: at for at, column in enumerate(columns)}
    for entry in report["results"]:
        at = place[_opponent(entry)]
        counts[entry["since"], at] += (entry["won"], entry["drawn"], entry["lost"])
    every = max(1, -(-rows // _MOST_CELLS), -(-len(columns) // _MOST_CELLS))
    if every > 1:
        blocks = range(0, rows, every), range(0, len(columns), every)
        counts = np.add.reduceat(np.add.reduceat(counts, blocks[0], axis=0), blocks[1], axis=1)
    heading = (
        f"{report['behavior']}: rating {report['rating']:.0f}, {len(report['snapshots'])} snapshots",
        "rows: the learner since its snapshot; columns: its opponents; blue: won, orange: lost",
    )
    since = [f"since {row}" for row in range(0, rows, every)]
    return _draw(heading, since, [_label(column) for column in columns[::every]], counts)


def draw_matrix(heading: Sequence[str], names: Sequence[str], counts: NDArray[np.float64]) -> bytes:
    """Draw the results of P players against each other as a PNG file.

    Args:
        heading: lines above the matrix.
        names: the names of rows and columns.
        counts: [P, P, 3] games that the row's player won, drew and lost against the column's player.
    """
    return _draw(heading, names, names, counts)


def _opponent(entry: Mapping[str, Any]) -> Opponent:
    """Return the opponent that an entry names. Opponents that do not learn sort after all snapshots."""
    brain = entry.get("brain")
    return (entry["against"], 0, entry["snapshot"]) if brain is None else (entry["against"], 1, brain)


def _label(opponent: Opponent) -> str:
    name, _, player = opponent
    return f"{name} newest" if player == -1 else f"{name} {player}"


def _draw(heading: Sequence[str], names: Sequence[str], labels: Sequence[str], counts: NDArray[np.float64]) -> bytes:
    """Draw counts [rows, columns, 3] as cells, with a name before each row and a label below each column."""
    return _draw_parts(heading, [("", names, [[*map(_cell, row)] for row in counts])], labels)


def _draw_parts(
    heading: Sequence[str],
    parts: Sequence[tuple[str, Sequence[str], Sequence[Sequence[Any]]]],
    labels: Sequence[str],
    descent: Sequence[tuple[int, int]] = (),
) -> bytes:
    """Draw matrices with the same columns, one below the other, and arcs from parents to children, as a PNG file."""
    rows, width = sum(len(names) for _, names, _ in parts), len(labels)
    cell = max(2, min(_LARGEST_CELL, _PICTURE // max(rows, width, 1)))
    font = ImageFont.load_default()
    gap = max(1, -(-_LINE // cell))  # number of cells between two labels
    named = [name for _, names, _ in parts for name in names]
    left = _MARGIN + 8 + max((int(font.getlength(name)) for name in named), default=0)
    below = 8 + max((int(font.getlength(label)) for label in labels), default=0)
    top = _MARGIN + _LINE * len(heading) + 6
    titles = [title for title, _, _ in parts if title] + (["Ancestry of the players"] if descent else [])
    wide = max(left + cell * width, *(_MARGIN + int(font.getlength(line)) for line in (*heading, *titles))) + _MARGIN
    arcs = min(_ARCS, cell * width // 3) if descent else 0
    image = Image.new("RGB", (wide, top + cell * rows + _TITLE * len(titles) + below + arcs + _MARGIN), _PAPER)
    pen = ImageDraw.Draw(image)
    for at, line in enumerate(heading):
        pen.text((_MARGIN, _MARGIN + at * _LINE), line, _INK, font)
    for title, names, cells in parts:
        top = _draw_title(pen, title, top, font)
        for row, shown in enumerate(cells):
            if row % gap == 0:
                pen.text((_MARGIN, top + row * cell + cell / 2), names[row], _INK, font, anchor="lm")
            for column, entry in enumerate(shown):
                _draw_cell(pen, (left + column * cell, top + row * cell), cell, entry, font)
        top += cell * len(cells)
    for column in range(0, width, gap):
        _write_upwards(image, labels[column], (left + column * cell + cell // 2, top + 6), font)
    if descent:
        top = _draw_title(pen, titles[-1], top + below, font)
        _draw_arcs(pen, descent, (left + cell // 2, top), cell, arcs)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return file.getvalue()


def _draw_title(pen: ImageDraw.ImageDraw, title: str, top: int, font: Any) -> int:
    """Draw a part's title, if it has one; return the top of the part's matrix, in pixels."""
    pen.text((_MARGIN, top + _TITLE - 4), title, _INK, font, anchor="ls")
    return top + _TITLE * bool(title)


def _draw_arcs(
    pen: ImageDraw.ImageDraw, descent: Sequence[tuple[int, int]], origin: tuple[int, int], cell: int, height: int
) -> None:
    """Draw an arc below the columns for each child and its parent, with a dot at the child."""
    x, y = origin
    longest = max(abs(child - parent) for child, parent in descent)
    for child, parent in descent:
        deep = height * abs(child - parent) / longest
        box = (x + cell * min(child, parent), y - deep, x + cell * max(child, parent), y + deep)
        pen.arc(box, 0, 180, _LINK)
        pen.ellipse((x + cell * child - 2, y - 2, x + cell * child + 2, y + 2), _INK)


def _cell(counts: NDArray[np.float64]) -> Cell | None:
    games = counts.sum()
    score = (counts[0] + 0.5 * counts[1]) / games if games else 0.5
    return (float(score), f"{100 * score:.0f}%", "") if games else None


def _draw_cell(pen: ImageDraw.ImageDraw, corner: tuple[int, int], size: int, cell: Cell | None, font: Any) -> None:
    (x, y), edge = corner, 2 if size > 4 else 1
    pen.rectangle((x, y, x + size - edge, y + size - edge), _NEVER if cell is None else _colour(cell[0]))
    if cell is not None and size >= _TEXT_CELL * font.getlength(cell[1]) / font.getlength("100%"):
        ink = _INK if 0.2 < cell[0] < 0.8 else _PAPER
        pen.text((x + size / 2 - 1, y + size / 2 - 1), cell[1], ink, font, anchor="mm")


def _colour(score: float) -> tuple[int, int, int]:
    end, share = (_WON, 2 * score - 1) if score > 0.5 else (_LOST, 1 - 2 * score)
    red, green, blue = (_EVEN + share * (end - _EVEN)).round().astype(int).tolist()
    return red, green, blue


def _write_upwards(image: Image.Image, text: str, at: tuple[int, int], font: Any) -> None:
    """Draw text that reads upwards and ends at the top centre `at`."""
    label = Image.new("RGB", (int(font.getlength(text)) + 2, _LINE), _PAPER)
    ImageDraw.Draw(label).text((label.width, _LINE / 2), text, _INK, font, anchor="rm")
    turned = label.transpose(Image.Transpose.ROTATE_90)
    image.paste(turned, (at[0] - turned.width // 2, at[1]))

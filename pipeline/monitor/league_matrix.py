"""A league's report for the page: ratings, and the matrix of results, neighbours summed where it is large."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MOST_CELLS = 40
"""Rows and columns of the matrix at most."""


def league_for_page(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `headrace.stages.ghost.league.report` with its results as a matrix.

    Rows are spans of the learner's snapshots, or brains where nobody learns; columns are spans of an opponent's
    snapshots and brains; a cell is [won, drawn, lost] or None.
    """
    results = report["results"]
    columns = sorted({_opponent(each) for each in results})
    names = [each["brain"] for each in report.get("brains", [])] if report["rating"] is None else None
    rows = 1 + max((int(each["since"]) for each in results), default=-1)
    tall, wide = (max(1, -(-size // MOST_CELLS)) for size in (rows, len(columns)))
    place = {column: at // wide for at, column in enumerate(columns)}
    cells: list[list[list[int] | None]] = [[None] * (-(-len(columns) // wide)) for _ in range(-(-rows // tall))]
    for each in results:
        row, column = int(each["since"]) // tall, place[_opponent(each)]
        before = cells[row][column] or [0, 0, 0]
        cells[row][column] = [n + int(each[key]) for n, key in zip(before, ("won", "drawn", "lost"), strict=True)]
    return {
        "behavior": report["behavior"],
        "rating": report["rating"],
        "snapshots": [
            {key: each.get(key) for key in ("snapshot", "step", "rating", "games", "won", "drawn", "lost")}
            for each in report["snapshots"]
        ],
        "brains": report.get("brains", []),
        "columns": [
            {"against": name, "snapshot": number, "brain": brain or None} for name, brain, number in columns[::wide]
        ],
        "rows": [row * tall if names is None else names[row * tall] for row in range(len(cells))],
        "cells": cells,
    }


def _opponent(each: Mapping[str, Any]) -> tuple[str, str, int]:
    """The behaviour, the name of the brain, behind all snapshots, or the snapshot's number."""
    snapshot = each["snapshot"]
    return str(each["against"]), str(each.get("brain") or ""), -1 if snapshot is None else int(snapshot)

"""Converts a league's report to a chart as plain data: matrices over the players, and the players' ancestry.

The report comes from `LeagueController.report()`. `league_plot` (with Pillow) and the live page draw the chart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Cell = tuple[float, str, str]
"""(value, text, details); the value, from 0 (lost) through 0.5 (even) to 1 (won), determines the colour."""


def chart_of(report: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Convert a league's report to a chart.

    Args:
        report: the report of a league with learners.
        most: the maximum number of columns; with more players, neighbours share a column.

    Returns:
        `columns`: the players' names, learners first, then frozen members grouped by learner. `parts`: matrices, each
        with a `title`, the names of its `rows`, and `cells`, a `Cell` or None by row and column. `descent`: pairs of
        columns, the child's and its parent's. Also `behavior` and `heading`.
    """
    learners, members = report["learners"], report["members"]
    order = sorted(range(len(members)), key=lambda i: (members[i]["learner"], members[i]["number"]))
    places = [*range(len(learners)), *(len(learners) + i for i in order)]
    every = max(1, -(-len(places) // most))
    starts = np.arange(0, len(places), every)
    at = {place: column // every for column, place in enumerate(places)}
    names = [str(report["players"][place]) for place in places]
    columns = [name if every == 1 else f"{name} …" for name in names[::every]]
    named, mixed = {name: i for i, name in enumerate(names)}, np.zeros((1, len(names)))
    met = np.zeros((len(learners), len(names)))
    for row, learner in enumerate(learners):
        for name, share in learner["opponents"]:
            met[row, named[name]] += share
    for number, share in report["mixture"]:
        mixed[0, places.index(len(learners) + int(number))] = share
    parents = [(row, learner.get("parent", -1)) for row, learner in enumerate(learners)]
    parents += [(len(learners) + member["number"], member["parent"]) for member in members]
    descent = {(at[child], at[len(learners) + parent]) for child, parent in parents if parent >= 0}
    payoff = "wins (%)" if report["payoff"] == "win_rate" else "mean return"
    title = f"Rows against columns: {payoff}; blue: won, orange: lost"
    matrix = {"title": title, "rows": columns, "cells": _payoffs(report, places, starts)}
    draws = {"title": "Current opponents (%)", "rows": [learner["learner"] for learner in learners]}
    mixture = {"title": "Mixture (%)", "rows": ["mixture"], "cells": _shares(mixed, starts)}
    return {
        "behavior": report["behavior"],
        "heading": [
            f"{report['behavior']}: {len(learners)} learner{'s' * (len(learners) != 1)}, {len(members)} frozen "
            f"member{'s' * (len(members) != 1)}",
            *report.get("notes", ()),
        ],
        "columns": columns,
        "parts": [matrix, {**draws, "cells": _shares(met, starts)}, mixture],
        "descent": sorted(pair for pair in descent if pair[0] != pair[1]),
    }


def _payoffs(report: Mapping[str, Any], places: Sequence[int], starts: NDArray[np.intp]) -> list[list[Cell | None]]:
    """Return the payoff matrix; neighbours that share a column show their mean payoff, weighted by games."""
    is_known = np.array([[value is not None for value in row] for row in report["payoffs"]], bool)
    values = np.array([[value or 0.0 for value in row] for row in report["payoffs"]], np.float64)
    games = np.array(report["games"], np.float64)
    chosen = np.ix_(places, places)
    weights = (np.maximum(games, 1.0) * is_known)[chosen]
    sums, totals, counts = (
        np.add.reduceat(np.add.reduceat(matrix, starts, axis=0), starts, axis=1)
        for matrix in (weights, weights * values[chosen], games[chosen])
    )
    means = np.divide(totals, sums, out=np.zeros_like(sums), where=sums > 0)
    wins = report["payoff"] == "win_rate"
    most = max(float(np.abs(means).max(initial=0.0)), 1e-9)
    shades = means if wins else 0.5 + means / (2 * most)
    texts = [[f"{100 * mean:.0f}" if wins else f"{mean:+.2f}" for mean in row] for row in means]
    return [
        [
            (round(float(shade), 4), text, f"{count:.0f} games") if weight else None
            for shade, text, count, weight in zip(*row, strict=True)
        ]
        for row in zip(shades, texts, counts, sums, strict=True)
    ]


def _shares(values: Floats, starts: NDArray[np.intp]) -> list[list[Cell | None]]:
    summed = np.add.reduceat(values, starts, axis=1)
    return [
        [
            (round(0.5 + float(share) / 2, 4), f"{100 * share:.0f}", f"{100 * share:.2f} %") if share else None
            for share in row
        ]
        for row in summed
    ]

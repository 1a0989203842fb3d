"""The chart of a league with several learners: matrices over its players, and who descends from whom."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from headrace.stages.ghost.league_chart import chart_of
from headrace.stages.ghost.league_plot import draw_league


def report(members=(("main", -1), ("rival", -1), ("main", 0)), payoff="win_rate", **known):
    """A league of main, whose newest policy descends from the last member, and a rival."""
    listed = [{"number": i, "learner": learner, "parent": parent} for i, (learner, parent) in enumerate(members)]
    players = ["main", "rival", *(f"{learner} {i}" for i, (learner, _) in enumerate(members))]
    n = len(players)
    return {
        "behavior": "Ball",
        "payoff": payoff,
        "learners": [
            {"learner": "main", "parent": len(members) - 1, "opponents": [["main", 0.25], ["main 0", 0.75]]},
            {"learner": "rival", "parent": -1, "opponents": []},
        ],
        "members": listed,
        "players": players,
        "games": [[0] * n for _ in range(n)],
        "payoffs": [[None] * n for _ in range(n)],
        "mixture": [[0, 0.4], [2, 0.6]],
    } | known


def met(found, *games):
    """Note games: row, column, how many, the row's payoff."""
    for row, column, count, value in games:
        found["games"][row][column], found["payoffs"][row][column] = count, value
    return found


def test_columns_are_the_learners_and_then_the_members_of_each_together():
    chart = chart_of(met(report(), (0, 3, 8, 0.75), (3, 0, 8, 0.25)), 40)
    assert chart["columns"] == ["main", "rival", "main 0", "main 2", "rival 1"]
    payoffs, now, mixture = chart["parts"]
    assert payoffs["cells"][0] == [None, None, None, None, (0.75, "75", "8 games")]
    assert payoffs["cells"][4] == [(0.25, "25", "8 games"), None, None, None, None]
    assert now["cells"][0] == [(0.625, "25", "25.00 %"), None, (0.875, "75", "75.00 %"), None, None]
    assert now["cells"][1] == [None] * 5
    assert mixture["cells"] == [[None, None, (0.7, "40", "40.00 %"), (0.8, "60", "60.00 %"), None]]
    assert chart["descent"] == [(0, 3), (3, 2)]


def test_mean_returns_are_coloured_from_the_worst_to_the_best():
    found = met(report(payoff="mean_return"), (0, 1, 1, -2.0), (1, 0, 1, 2.0), (0, 2, 4, 0.5))
    first, second = chart_of(found, 40)["parts"][0]["cells"][:2]
    assert first[1:3] == [(0.0, "-2.00", "1 games"), (0.625, "+0.50", "4 games")]
    assert second[0] == (1.0, "+2.00", "1 games")


def test_neighbours_in_a_large_league_are_merged_by_their_mean():
    found = met(report([("main", -1)] * 10), (0, 2, 30, 1.0), (0, 3, 10, 0.0))
    chart = chart_of(found, 6)
    assert chart["columns"] == ["main …", "main 0 …", "main 2 …", "main 4 …", "main 6 …", "main 8 …"]
    assert chart["parts"][0]["cells"][0][1] == (0.75, "75", "40 games")
    assert sum(cell[0] - 0.5 for cell in chart["parts"][2]["cells"][0] if cell) == pytest.approx(0.5)


def test_a_league_without_members_has_a_chart_and_a_picture():
    empty = report([], mixture=[])
    empty["learners"][0] |= {"parent": -1, "opponents": [["main", 1.0]]}
    assert chart_of(empty, 40)["descent"] == []
    assert Image.open(io.BytesIO(draw_league(empty))).width > 50


def test_the_picture_has_the_colours_of_the_chart():
    found = met(report(), (0, 1, 8, 1.0), (1, 0, 8, 0.0))
    pixels = np.asarray(Image.open(io.BytesIO(draw_league(found | {"notes": ["NashConv: 0.5"]}))).convert("RGB"))
    for colour in ((33, 102, 172), (217, 95, 14), (214, 214, 214), (120, 120, 120)):
        assert (pixels == colour).all(axis=2).any(), colour

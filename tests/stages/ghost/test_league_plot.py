"""The picture of a league."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from headrace.stages.ghost.league_plot import draw_league

WON, LOST, EVEN, NEVER = (33, 102, 172), (217, 95, 14), (247, 247, 247), (214, 214, 214)


def picture(results, snapshots=3):
    league = {"behavior": "Ball", "rating": 1234.5, "snapshots": [{}] * snapshots, "results": results}
    return np.asarray(Image.open(io.BytesIO(draw_league(league))).convert("RGB"))


def entry(since, snapshot, won=0, drawn=0, lost=0, against="Ball"):
    return {"since": since, "against": against, "snapshot": snapshot, "won": won, "drawn": drawn, "lost": lost}


def pixels(image, colour):
    return int((image == colour).all(axis=-1).sum())


def test_won_lost_even_and_never_met_have_their_colours():
    image = picture([entry(0, 0, won=3), entry(1, 0, lost=3), entry(1, 1, drawn=2)])
    won, lost, even, never = (pixels(image, colour) for colour in (WON, LOST, EVEN, NEVER))
    assert min(won, lost, even) > 1000
    assert never == pytest.approx(won, rel=0.5), "one cell of four"


def test_a_league_without_games_has_a_picture_too():
    image = picture([])
    assert pixels(image, WON) == pixels(image, LOST) == 0


@pytest.mark.lengthy
def test_neighbours_in_a_long_league_are_merged():
    image = picture([entry(at, at, won=1, lost=at % 2) for at in range(1100)], snapshots=1100)
    assert max(image.shape) < 1000

"""Scenes as images: shapes stand where their numbers say, over what does not change."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.stages.games.connect_four import ConnectFourGroup
from headrace.stages.games.drawing import WIDTH, SceneImages
from headrace.stages.games.pursuit import PursuitGroup
from headrace.stages.games.scene import Display, area, disc, stroke
from headrace.stages.games.volley import VolleyGroup

RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)


def images(backdrop=(), view=(-2.0, 0.0, 4.0, 2.0)):
    return SceneImages(Display(0.02, view, ("#ffffff", "#ffffff"), [*backdrop], {}, {}))


def pixel(image, x, y, view=(-2.0, 0.0, 4.0, 2.0)):
    left, bottom, wide, high = view
    column, row = int((x - left) / wide * image.shape[1]), int((1 - (y - bottom) / high) * image.shape[0])
    return tuple(image[min(row, image.shape[0] - 1), min(column, image.shape[1] - 1)].tolist())


def test_shapes_stand_in_the_games_own_units_with_y_upwards():
    shapes = [
        disc(-1.0, 1.5, 0.3, 0.2, "#ff0000"),
        area([(0, 0), (1, 0), (1, 0.5), (0, 0.5)], "#0000ff"),
        stroke([(1.5, 0.2), (1.5, 1.8)], "#ff0000", 0.2),
    ]
    image = images().image(shapes)
    assert image.shape == (WIDTH // 2, WIDTH, 3)
    assert [pixel(image, *at) for at in ((-1, 1.5), (0.5, 0.25), (1.5, 1.0))] == [RED, BLUE, RED]
    assert [pixel(image, *at) for at in ((-1, 1.2), (0.5, 0.8), (1.2, 1.0), (-1.5, 1.5))] == [WHITE] * 4


def test_shapes_may_be_outlines_and_transparent():
    image = images().image([disc(0, 1, 0.5, 0.5, None, "#ff0000", 0.1), disc(-1.5, 1, 0.2, 0.2, "#ff000080")])
    assert (pixel(image, 0, 1), pixel(image, 0.5, 1)) == (WHITE, RED)
    assert pixel(image, -1.5, 1) == (255, 127, 127)


def test_only_the_backdrop_stays_between_scenes():
    drawn = images([disc(1, 1, 0.3, 0.3, "#0000ff")])
    first = drawn.image([disc(-1, 1, 0.3, 0.3, "#ff0000")])
    second = drawn.image([])
    assert [pixel(first, -1, 1), pixel(first, 1, 1)] == [RED, BLUE]
    assert [pixel(second, -1, 1), pixel(second, 1, 1)] == [WHITE, BLUE]


@pytest.mark.lengthy
@pytest.mark.parametrize("game", [VolleyGroup, PursuitGroup, ConnectFourGroup])
def test_every_built_in_game_is_drawn_in_an_even_number_of_pixels(game):
    group = game(1)
    group.reset(0)
    image = SceneImages(group.display).image(group.scene(0).shapes)
    assert max(image.shape) == WIDTH
    assert not np.any(np.array(image.shape[:2]) % 2), "as videos want it"
    assert len(np.unique(image @ np.array([1, 256, 65536]))) > 10, "colours"

import numpy as np
import pytest
from PIL import Image
from PIL.GifImagePlugin import GifImageFile

from headrace.stages.exhibition.volley_clip import write_clip
from headrace.stages.games.volley import VX, ScriptedPlayer, VolleyGroup, X, Y


@pytest.fixture
def group():
    group = VolleyGroup(2)
    group.reset(0)
    return group


@pytest.mark.lengthy
def test_a_picture_is_rgb_and_twice_as_wide_as_high(group):
    picture = group.render(1)

    assert picture.shape == (300, 600, 3)
    assert picture.dtype == np.uint8
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 50


def test_a_picture_shows_its_own_court_with_the_ball_where_it_is(group):
    group.courts.ball[[X, Y], 0] = -2.0, 1.75
    group.courts.ball[[X, Y], 1] = 1.0, 1.75

    air = slice(0, 180)  # above the players, whose eyes move too
    changed = np.flatnonzero((group.render(0)[air] != group.render(1)[air]).any(axis=(0, 2)))

    # Balls of 20 pixels' radius around x = 100 and x = 400.
    assert 78 <= changed.min() <= 82
    assert 418 <= changed.max() <= 422
    assert not np.isin(np.arange(125, 375), changed).any()


def test_points_light_lamps_on_the_scorer_s_side(group):
    before = group.render(0)
    group.score[1, 0] = 2

    columns = np.flatnonzero((group.render(0) != before).any(axis=(0, 2)))

    assert columns.min() > 450


@pytest.mark.lengthy
def test_a_clip_is_a_small_looping_gif_of_the_game(tmp_path, group):
    path = tmp_path / "game.gif"

    write_clip(path, group, (ScriptedPlayer(), ScriptedPlayer()), seconds=6, seed=1)

    assert path.stat().st_size < 1_000_000
    with Image.open(path) as film:
        assert isinstance(film, GifImageFile)
        assert film.size == (300, 150)
        assert film.n_frames > 100  # frames without any change are joined by Pillow
        assert film.info["loop"] == 0
        film.seek(0)
        first = np.asarray(film.convert("RGB"))
        film.seek(film.n_frames - 1)
        assert (np.asarray(film.convert("RGB")) != first).any()
    assert group.on_tick is None


def test_filming_changes_nothing_in_the_game(tmp_path):
    filmed, plain = VolleyGroup(1), VolleyGroup(1)
    player = ScriptedPlayer()

    write_clip(tmp_path / "game.gif", filmed, (player, player), seconds=1, width=100, seed=4)
    result = plain.reset(4)
    for _ in range(9):  # 25 frames of 2 ticks, in decisions of 6
        result = plain.step({i: player(result.steps[i].observations) for i in plain.behavior_ids})

    np.testing.assert_array_equal(filmed.courts.ball, plain.courts.ball)
    assert filmed.courts.ball[VX, 0] != 0

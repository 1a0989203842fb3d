"""Films as files: whole ones as mp4, the first seconds as GIF, and none that is half written."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from headrace.stages.exhibition.recorder import GIF_FPS, GIF_S, GIF_WIDTH, GifFile, Mp4File


def picture(shade, size=(40, 60)):
    return np.full((*size, 3), shade, np.uint8)


def frames_of(written: Image.Image) -> int:
    return int(getattr(written, "n_frames", 1))


def test_a_gif_runs_at_the_pace_of_the_game(tmp_path):
    film = GifFile(tmp_path / "game", 50.0)
    for shade in range(0, 250, 10):
        film.add(picture(shade))
    film.close()
    assert [path.name for path in tmp_path.iterdir()] == ["game.gif"]
    with Image.open(film.path) as written:
        assert (frames_of(written), written.info["duration"]) == (13, 40), "every second one, which browsers can show"
        shades = []
        for number in range(13):
            written.seek(number)
            shades.append(written.convert("L").getpixel((5, 5)))
    assert shades == [*range(0, 250, 20)], "colours that come late are kept, too"


def test_a_gif_has_the_first_seconds_and_at_most_the_width_of_a_page(tmp_path):
    film = GifFile(tmp_path / "game", GIF_FPS)
    for number in range(round(GIF_S * GIF_FPS) + 40):
        film.add(picture(250 * (number % 2), (4, 2 * GIF_WIDTH)))
    film.close()
    with Image.open(film.path) as written:
        assert written.size == (GIF_WIDTH, 2)
        assert frames_of(written) == GIF_S * GIF_FPS


@pytest.mark.lengthy
def test_an_mp4_has_every_picture_at_the_pace_that_was_stated(tmp_path):
    av = pytest.importorskip("av", reason="pip install 'headrace[video]'")
    film = Mp4File(tmp_path / "game", 29.5)
    for shade in (0, 120, 240):
        film.add(picture(shade, (41, 61)))  # an odd number of pixels, which H.264 has not
    film.add(picture(240, (20, 20)))  # and a game that changes its size
    assert not film.path.exists(), "it is there once it can be watched"
    film.close()
    assert [path.name for path in tmp_path.iterdir()] == ["game.mp4"]
    with av.open(str(film.path)) as written:
        frames = [frame.to_ndarray(format="rgb24") for frame in written.decode(video=0)]
        assert float(written.streams.video[0].average_rate) == pytest.approx(29.5)
    assert [frame.shape for frame in frames] == [(42, 62, 3)] * 4
    assert [abs(float(frame.mean()) - shade) < 4 for frame, shade in zip(frames, (0, 120, 240, 240), strict=True)]


@pytest.mark.parametrize("kind", [GifFile, Mp4File])
def test_a_film_without_pictures_leaves_no_file(tmp_path, kind):
    if kind is Mp4File:
        pytest.importorskip("av", reason="pip install 'headrace[video]'")
    kind(tmp_path / "game", 30.0).close()
    assert [*tmp_path.iterdir()] == []

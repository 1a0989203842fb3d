"""PNG observations."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from unity_samples import CHANNELS_FIRST, CHANNELS_LAST, agent, brain, noise, numbers, picture, png

from headrace.stages.environments.engines.errors import GameBroken
from headrace.stages.environments.engines.unity.columns import BehaviorReader
from headrace.stages.environments.engines.unity.png import PngError, decode_into

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def decoded(data, shape, mapping=()):
    out = np.zeros(shape, np.uint8)
    decode_into(out, data, tuple(mapping))
    return out


def first(pixels):
    """[C, H, W] of [H, W, C]."""
    return pixels.transpose(2, 0, 1)


def wrong(data, shape, mapping=()) -> str:
    with pytest.raises(PngError) as caught:
        decoded(data, shape, mapping)
    return str(caught.value)


@given(st.integers(1, 4), st.integers(1, 7), st.integers(1, 7), st.integers(0, 99), st.data())
def test_concatenated_files_are_consecutive_channels(files, height, width, seed, data):
    pixels = noise(height, width, 3 * files, seed=seed)
    sent = b"".join(png(pixels[:, :, 3 * i : 3 * i + 3]) for i in range(files))
    channels = data.draw(st.integers(2, 3 * files))
    np.testing.assert_array_equal(decoded(sent, (channels, height, width)), first(pixels)[:channels])


@given(st.integers(1, 3), st.integers(0, 99), st.data())
def test_a_mapping_averages_and_drops_channels(files, seed, data):
    pixels = noise(3, 4, 3 * files, seed=seed)
    sent = b"".join(png(pixels[:, :, 3 * i : 3 * i + 3]) for i in range(files))
    channels = data.draw(st.integers(1, 3 * files))
    others = st.lists(st.integers(-1, channels - 1), min_size=3 * files - channels, max_size=3 * files - channels)
    mapping = data.draw(st.permutations([*range(channels), *data.draw(others)]))
    result = decoded(sent, (channels, 3, 4), mapping)
    for channel in range(channels):
        sources = [first(pixels)[at] for at, target in enumerate(mapping) if target == channel]
        np.testing.assert_allclose(result[channel], np.mean(sources, axis=0), atol=0.5)


def test_a_grey_picture_is_the_mean_of_three_channels():
    pixels = np.zeros((1, 2, 3), np.uint8)
    pixels[0, 0], pixels[0, 1] = (10, 20, 31), (255, 255, 254)
    for mapping in ((), (0, 0, 0)):
        assert decoded(png(pixels), (1, 1, 2), mapping).tolist() == [[[20, 255]]]


def test_a_single_file_in_grey_has_three_equal_channels():
    grey = noise(3, 4)
    for shape, mapping in [((1, 3, 4), ()), ((1, 3, 4), (0, 0, 0)), ((3, 3, 4), ())]:
        np.testing.assert_array_equal(decoded(png(grey), shape, mapping), np.broadcast_to(grey, shape))


@pytest.mark.parametrize(
    ("data", "mode"), [(png(noise(3, 4)) * 2, "L"), (png(noise(3, 4).astype(np.uint16) * 257), "I;16")]
)
def test_several_files_in_grey_and_files_of_16_bits_are_reported(data, mode):
    assert f"has a PNG file of the mode '{mode}'; expected RGB or RGBA or P" in wrong(data, (2, 3, 4))


def test_files_of_other_kinds_are_read():
    pixels = noise(3, 4, 3)
    opaque = np.concatenate([pixels, np.full((3, 4, 1), 255, np.uint8)], axis=2)
    np.testing.assert_array_equal(decoded(png(opaque), (3, 3, 4)), first(pixels))
    palette = io.BytesIO()
    Image.fromarray(np.zeros((3, 4, 3), np.uint8) + 7).convert("P").save(palette, "PNG")
    indexed = np.asarray(Image.open(io.BytesIO(palette.getvalue())).convert("RGB"))
    np.testing.assert_array_equal(decoded(palette.getvalue(), (3, 3, 4)), first(indexed))


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


@given(st.integers(0, 200))
def test_a_file_that_is_cut_off_anywhere_is_reported(cut):
    file = png(noise(3, 4, 3))
    cut = min(cut, len(file) - 1)
    expected = "has no data" if not cut else "no PNG signature" if cut < len(SIGNATURE) else "is truncated"
    assert expected in wrong(file[:cut], (3, 3, 4))
    if cut:
        assert ("no PNG signature at byte" if cut < len(SIGNATURE) else "is truncated") in wrong(
            file + file[:cut], (6, 3, 4)
        )


def test_damaged_content_is_reported():
    file = bytearray(png(noise(3, 4, 3)))
    at = file.index(b"IDAT") + 8
    file[at] ^= 0xFF
    assert "can't be decoded" in wrong(bytes(file), (3, 3, 4))
    assert "is a PNG without a header" in wrong(SIGNATURE + chunk(b"IEND", b"")[:12], (3, 3, 4))


def test_a_picture_of_another_size_is_reported_before_it_is_decoded():
    header = struct.pack(">IIBBBBB", 1 << 20, 1 << 20, 8, 2, 0, 0, 0)
    enormous = SIGNATURE + chunk(b"IHDR", header) + chunk(b"IEND", b"")
    assert "is a PNG of 1048576×1048576 (height × width); expected at most 16,777,216 pixels" in wrong(
        enormous, (3, 3, 4)
    )
    assert "holds an image of 3×5" in wrong(png(noise(3, 4, 3)) + png(noise(3, 5, 3)), (6, 3, 4))


def test_too_few_channels_are_reported():
    assert "has images with 3 channels; expected 4" in wrong(png(noise(3, 4, 3)), (4, 3, 4))


@pytest.mark.parametrize(
    ("channels", "mapping", "problem"),
    [
        (1, (0, 0), "has a channel mapping for 2 channels, but its images have 3"),
        (2, (0, 2, -1), "has the channel mapping [0, 2, -1]: expected -1, and 0, 1, 2 … without gaps"),
        (3, (0, 1, 1), "has the channel mapping [0, 1, 1] to 2 channels; expected 3"),
        (1, (-1, -1, -1), "to 0 channels; expected 1"),
    ],
)
def test_a_mapping_that_does_not_fit_is_reported(channels, mapping, problem):
    assert problem in wrong(png(noise(3, 4, 3)), (channels, 3, 4), mapping)


def reader_of(first_agent):
    return BehaviorReader(brain(continuous=1), first_agent, "Unity worker 0")


@pytest.mark.parametrize("properties", [CHANNELS_FIRST, (0, 0, 0), ()])
def test_packages_of_today_put_the_channels_first(properties):
    pixels = noise(6, 8, 3)
    info = agent(1, picture(png(pixels), (3, 6, 8), properties=properties))
    reader = reader_of(info)
    assert not reader.spec.observations[0].channels_last
    np.testing.assert_array_equal(reader.read([info]).observations[0][0], first(pixels))


@pytest.mark.parametrize("properties", [CHANNELS_LAST, (0, 0, 0), ()])
def test_older_packages_put_the_channels_last_as_the_picture_shows(properties):
    pixels = noise(6, 8, 3)
    info = agent(1, picture(png(pixels), (6, 8, 3), properties=properties))
    reader = reader_of(info)
    assert reader.spec.observations[0].channels_last
    assert reader.spec.observations[0].shape == (6, 8, 3)
    np.testing.assert_array_equal(reader.read([info]).observations[0][0], pixels)


@pytest.mark.parametrize(("properties", "last"), [(CHANNELS_FIRST, False), (CHANNELS_LAST, True), ((0, 0, 0), False)])
def test_dimension_properties_decide_between_two_valid_layouts(properties, last):
    reader = reader_of(agent(1, picture(png(noise(3, 3, 3)), (3, 3, 3), properties=properties)))
    assert reader.spec.observations[0].channels_last is last


@pytest.mark.parametrize(
    ("shape", "properties", "last"),
    [
        ((20, 20, 3), CHANNELS_LAST, True),
        ((20, 20, 3), (), True),
        ((3, 20, 20), (), False),
    ],
)
def test_dimension_properties_give_the_layout_of_an_uncompressed_image(shape, properties, last):
    values = np.random.default_rng(0).random(shape, np.float32)
    info = agent(1, numbers(values, properties=properties))
    reader = reader_of(info)
    assert (reader.spec.observations[0].channels_last, reader.spec.observations[0].dtype) == (last, "float32")
    np.testing.assert_array_equal(reader.read([info]).observations[0][0], values)


def test_a_first_picture_that_is_not_of_its_shape_is_reported():
    with pytest.raises(GameBroken, match=r"'Camera' of shape \(3, 5, 5\) holds an image of 6×8"):
        reader_of(agent(1, picture(png(noise(6, 8, 3)), (3, 5, 5))))
    with pytest.raises(GameBroken, match=r"agent 1: observation 'Camera' of shape \(3, 5, 5\) has no data"):
        reader_of(agent(1, picture(b"", (3, 5, 5))))

"""Unity's compressed observations: one or more PNG files of three channels each, one behind the other.

Which of their channels become which of the observation's, a mapping says; older packages send none. Unity averages the
channels of grey pictures and of stacked grids by such a mapping, and fills the last file up with channels that nobody
wants.
"""

from __future__ import annotations

import io
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.uint8]

DROPPED = -1
"""In a channel mapping: a channel of the files that is not part of the observation."""

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_SIZE_AT = 16
"""Offset of width and height, which PNG puts at a fixed place: behind the signature and the first chunk's head."""
_CHUNK_EXTRA = 12
"""Bytes of a chunk beside its content: length, type, checksum."""


class PictureError(Exception):
    """Bytes that are not the picture that they should be; the message says why."""


def split(data: bytes) -> list[bytes]:
    """Take PNG files that stand one behind the other apart.

    It goes from chunk to chunk: compressed content may hold the signature by chance.

    Raises:
        PictureError: if it is empty, or no PNG begins where one should, or the last one is cut off.
    """
    files, begin = [], 0
    while begin < len(data):
        end = _end(data, begin)
        files.append(data[begin:end])
        begin = end
    if not files:
        raise PictureError("has no data")
    return files


def _end(data: bytes, begin: int) -> int:
    if not data.startswith(_SIGNATURE, begin):
        raise PictureError(f"has no PNG signature at byte {begin} of {len(data)}")
    at = begin + len(_SIGNATURE)
    kind = b""
    while kind != b"IEND":
        kind = data[at + 4 : at + 8]
        at += int.from_bytes(data[at : at + 4], "big") + _CHUNK_EXTRA
        if at > len(data):
            raise PictureError(f"is cut off: its PNG needs at least {at} bytes, and there are {len(data)}")
    return at


def size(file: bytes) -> tuple[int, int]:
    """Height and width of a PNG file, without decoding it.

    Raises:
        PictureError: if it is too short to tell.
    """
    if len(file) < _SIZE_AT + 8:
        raise PictureError("is a PNG without a header")
    return int.from_bytes(file[_SIZE_AT + 4 : _SIZE_AT + 8], "big"), int.from_bytes(
        file[_SIZE_AT : _SIZE_AT + 4], "big"
    )


def decode_into(out: Picture, data: bytes, mapping: tuple[int, ...] = ()) -> None:
    """Decode an observation.

    Without a mapping an observation of one channel is the mean of the first file's, and one of several takes as many
    as it has from the beginning. Means are rounded to whole numbers, halves up.

    Args:
        out: [C, H, W], which says what is expected and is written to (a transposed view will do).
        data: the PNG files.
        mapping: per channel of the files the channel of the observation, or `DROPPED`; () for no mapping.

    Raises:
        PictureError: if the data is not of PNG files of the height and width, or their channels don't make C.
    """
    files = split(data)
    for file in files:
        if size(file) != out.shape[1:]:
            height, width = size(file)
            raise PictureError(
                f"holds a picture of {height}×{width} (height × width), expected {out.shape[1]}×{out.shape[2]}"
            )
    channels = _side_by_side([_pixels(file) for file in files], mapping or (0,) * len(out)).transpose(2, 0, 1)
    if mapping:
        if len(mapping) != len(channels):
            raise PictureError(f"has a channel mapping for {len(mapping)} channels, its pictures have {len(channels)}")
        for target, sources in zip(out, _sources(mapping, len(out)), strict=True):
            target[...] = _mean(channels[list(sources)])
    elif len(out) == 1:
        out[0] = _mean(channels[: len(channels) // len(files)])
    elif len(channels) < len(out):
        raise PictureError(f"has pictures of {len(channels)} channels, expected {len(out)}")
    else:
        out[...] = channels[: len(out)]


def _pixels(file: bytes) -> Picture:
    """[H, W, 1] of a grey file, [H, W, 3] of any other."""
    from PIL import Image  # only runs with pictures need it

    try:
        with Image.open(io.BytesIO(file), formats=("PNG",)) as image:
            if image.mode.startswith("I"):  # 16 bits of grey
                return (np.asarray(image, np.int64) >> 8).astype(np.uint8)[:, :, None]
            grey = image.mode in ("1", "L", "LA")
            pixels = np.asarray(image.convert("L" if grey else "RGB"))
    except (OSError, SyntaxError, ValueError) as error:  # all three are what Pillow raises of a damaged file
        raise PictureError(f"can't be decoded: {error}") from error
    return pixels[:, :, None] if grey else pixels


def _side_by_side(pictures: list[Picture], wanted: tuple[int, ...]) -> Picture:
    """[H, W, K]; grey files count one channel where that gives as many as are wanted, else three like all others."""
    if sum(picture.shape[2] for picture in pictures) != len(wanted):
        pictures = [np.repeat(picture, 3, axis=2) if picture.shape[2] == 1 else picture for picture in pictures]
    return np.concatenate(pictures, axis=2) if len(pictures) > 1 else pictures[0]


@lru_cache(maxsize=256)
def _sources(mapping: tuple[int, ...], channels: int) -> tuple[tuple[int, ...], ...]:
    """Per channel of the observation, which of the files make it."""
    used = sorted(set(mapping) - {DROPPED})
    if used != list(range(len(used))):
        raise PictureError(f"has the channel mapping {list(mapping)}: expected {DROPPED}, and 0, 1, 2 … without gaps")
    if len(used) != channels:
        raise PictureError(f"has the channel mapping {list(mapping)} to {len(used)} channels, expected {channels}")
    return tuple(tuple(at for at, channel in enumerate(mapping) if channel == target) for target in range(channels))


def _mean(channels: Picture) -> Picture:
    """[H, W] of [K, H, W]."""
    if len(channels) == 1:
        only: Picture = channels[0]
        return only
    total = channels.sum(axis=0, dtype=np.uint32)
    mean: Picture = ((total + len(channels) // 2) // len(channels)).astype(np.uint8)
    return mean

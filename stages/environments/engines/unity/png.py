"""Unity's compressed observations: one or more concatenated PNG files of three channels each.

Unity's packages, except older ones, send a channel mapping, which assigns the files' channels to the observation's
channels. With this mapping, `decode_into` averages the channels of greyscale images and stacked grids, and drops the
unused channels of the last file.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

DROPPED = -1
"""Value in a channel mapping for an unused channel of the files."""

_COLOURED = ("RGB", "RGBA", "P")
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_SIZE_AT = 16
"""Offset of the width and height, which always follow the signature and the first chunk's header."""
_MOST_PIXELS = 1 << 24
_CHUNK_EXTRA = 12
"""Number of bytes in a chunk in addition to its content: length, type and checksum."""
MOST_THREADS = 4
"""Maximum number of threads, because other processes need the cores too."""


class PngError(Exception):
    """The bytes can't be decoded to the expected image."""


def split_pngs(data: bytes) -> list[bytes]:
    """Split concatenated PNG files chunk by chunk, because compressed content may contain the signature by chance.

    Raises:
        PngError: if the data is empty, or holds bytes outside PNG files, or the last file is cut off.
    """
    files, begin = [], 0
    while begin < len(data):
        end = _end(data, begin)
        files.append(data[begin:end])
        begin = end
    if not files:
        raise PngError("has no data")
    return files


def _end(data: bytes, begin: int) -> int:
    if not data.startswith(_SIGNATURE, begin):
        raise PngError(f"has no PNG signature at byte {begin} of {len(data)}")
    at = begin + len(_SIGNATURE)
    kind = b""
    while kind != b"IEND":
        kind = data[at + 4 : at + 8]
        at += int.from_bytes(data[at : at + 4], "big") + _CHUNK_EXTRA
        if at > len(data):
            raise PngError(f"is truncated: its PNG needs at least {at} bytes, but has {len(data)}")
    return at


def png_size(file: bytes) -> tuple[int, int]:
    """Return the height and width of a PNG file, without decoding it.

    Raises:
        PngError: if the file is too short, or states more than `_MOST_PIXELS`.
    """
    if len(file) < _SIZE_AT + 8:
        raise PngError("is a PNG without a header")
    width, height = (int.from_bytes(file[at : at + 4], "big") for at in (_SIZE_AT, _SIZE_AT + 4))
    if width * height > _MOST_PIXELS:
        raise PngError(f"is a PNG of {height}×{width} (height × width); expected at most {_MOST_PIXELS:,} pixels")
    return height, width


def decode_into(out: Pixels, data: bytes, mapping: tuple[int, ...] = ()) -> None:
    """Decode an observation into `out`.

    Without a mapping, an observation with one channel is the mean of the first file's channels, and an observation with
    several channels has the files' first channels. Means are rounded to integers, halves up.

    Args:
        out: [C, H, W], the output, in the expected shape (a transposed view works).
        data: the PNG files.
        mapping: for each channel of the files, the channel of the observation or `DROPPED`; () for no mapping.

    Raises:
        PngError: if the data isn't PNG files of this height and width, or the files have too few channels for C.
    """
    files = split_pngs(data)
    for file in files:
        if png_size(file) != out.shape[1:]:
            height, width = png_size(file)
            raise PngError(
                f"holds an image of {height}×{width} (height × width); expected {out.shape[1]}×{out.shape[2]}"
            )
    modes = _COLOURED if len(files) > 1 else (*_COLOURED, "L")  # greyscale files in a row would repeat their channel
    channels = np.concatenate([_pixels(file, modes) for file in files], axis=2).transpose(2, 0, 1)
    if mapping:
        if len(mapping) != len(channels):
            raise PngError(f"has a channel mapping for {len(mapping)} channels, but its images have {len(channels)}")
        for target, sources in zip(out, _sources(mapping, len(out)), strict=True):
            target[...] = _mean(channels[list(sources)])
    elif len(out) == 1:
        out[0] = _mean(channels[: len(channels) // len(files)])
    elif len(channels) < len(out):
        raise PngError(f"has images with {len(channels)} channels; expected {len(out)}")
    else:
        out[...] = channels[: len(out)]


def _pixels(file: bytes, modes: tuple[str, ...]) -> Pixels:
    """Return the pixels [H, W, 3] of a file, which must be of one of these modes, as Pillow calls them."""
    from PIL import Image  # only runs with images need Pillow

    try:
        with Image.open(io.BytesIO(file), formats=("PNG",)) as image:
            if image.mode not in modes:
                raise PngError(f"has a PNG file of the mode {image.mode!r}; expected {' or '.join(modes)}")
            return np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError) as error:  # Pillow raises all three for a damaged file
        raise PngError(f"can't be decoded: {error}") from error


@lru_cache(maxsize=256)
def _sources(mapping: tuple[int, ...], channels: int) -> tuple[tuple[int, ...], ...]:
    """Return, for each channel of the observation, the channels of the files to average."""
    used = sorted(set(mapping) - {DROPPED})
    if used != list(range(len(used))):
        raise PngError(f"has the channel mapping {list(mapping)}: expected {DROPPED}, and 0, 1, 2 … without gaps")
    if len(used) != channels:
        raise PngError(f"has the channel mapping {list(mapping)} to {len(used)} channels; expected {channels}")
    return tuple(tuple(at for at, channel in enumerate(mapping) if channel == target) for target in range(channels))


def _mean(channels: Pixels) -> Pixels:
    """Return the mean [H, W] of channels [K, H, W]."""
    if len(channels) == 1:
        only: Pixels = channels[0]
        return only
    total = channels.sum(axis=0, dtype=np.uint32)
    mean: Pixels = ((total + len(channels) // 2) // len(channels)).astype(np.uint8)
    return mean


def encode_png(image: NDArray[np.uint8]) -> bytes:
    """Encode an image [C, H, W] as concatenated PNG files of three channels, as Unity does.

    A single channel is written three times, which makes the mean equal to that channel; unused channels are zeros.
    """
    from PIL import Image

    channels, height, width = image.shape
    if channels == 1:
        whole = np.repeat(image, 3, axis=0)
    else:
        whole = np.zeros((-(-channels // 3) * 3, height, width), np.uint8)
        whole[:channels] = image
    data = io.BytesIO()
    for start in range(0, len(whole), 3):
        picture = np.ascontiguousarray(whole[start : start + 3].transpose(1, 2, 0))
        Image.fromarray(picture).save(data, "PNG")
    return data.getvalue()


# Decoding in threads, for libraries that release the interpreter's lock while they decode.


def decode_each(decode: Callable[[int], None], count: int) -> None:
    """Call a function with each number below `count`, in several threads, and wait for all calls.

    Raises:
        Exception: the error of a failed call. Calls in other threads still complete.
    """
    threads = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, MOST_THREADS, count)
    if threads < 2:
        for number in range(count):
            decode(number)
        return

    def decode_part(first: int) -> None:
        for number in range(first, count, threads):
            decode(number)

    for _ in _pool(threads).map(decode_part, range(threads)):
        pass


@lru_cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "decoding")

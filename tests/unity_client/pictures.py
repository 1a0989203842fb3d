"""PNG files, written by hand: one colour all over is all that the scenes show."""

from __future__ import annotations

import struct
import zlib
from functools import cache


@cache
def png(height: int, width: int, rgb: tuple[int, int, int]) -> bytes:
    """A picture in one colour."""
    rows = (b"\0" + bytes(rgb) * width) * height
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        + _chunk(b"IDAT", zlib.compress(rows))
        + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

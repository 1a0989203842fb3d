"""Read a Headrace stream without any of Headrace's code: `python examples/read_stream.py FILE.stream`.

Written from docs/stream-format.md alone, to show that the page is sufficient, and as a starting point for readers in
other languages. It stops at the first incomplete frame, as the page requires, and prints the number of unread bytes.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import zstandard

HEADER, MESSAGE, INDEX, LATER = 1, 2, 3, 4
LIMIT = 1 << 30

Meta = dict[str, Any]
Arrays = dict[str, np.ndarray[Any, Any]]


def read_stream(path: str | Path) -> Iterator[tuple[int, Meta, Arrays]]:
    """Yield (kind, metadata, arrays by name) for every complete frame, the header first."""
    with open(path, "rb") as file:
        magic, version = struct.unpack("<8sI", file.read(12).ljust(12, b"\0"))
        if (magic, version) != (b"\x89HRACE\r\n", 1):
            raise ValueError(f"{path}: not a stream of version 1")
        size = Path(path).stat().st_size
        while size - file.tell() >= 16:
            start, head = file.tell(), file.read(16)
            length, kind, crc = struct.unpack("<QII", head)
            payload = file.read(length) if length <= min(size - file.tell(), LIMIT) else b""
            if len(payload) < length or zlib.crc32(head[:12] + payload) != crc:
                print(f"{path}: damaged at byte {start}, {size - start} bytes left unread", file=sys.stderr)
                return
            yield kind, *unpack(payload, kind)
            if kind == INDEX:
                return


def unpack(payload: bytes, kind: int) -> tuple[Meta, Arrays]:
    """Return the two parts of a frame: plain data, and the arrays that it lists."""
    if zstandard.get_frame_parameters(payload).content_size > LIMIT:
        raise ValueError("a frame states more than 1 GiB")
    content = zstandard.ZstdDecompressor().decompress(payload)
    (meta_length,) = struct.unpack_from("<I", content)
    meta = msgpack.unpackb(content[4 : 4 + meta_length])
    at, arrays = aligned(4 + meta_length), {}
    for name, dtype, shape in (meta["message"] if kind == MESSAGE else meta).get("arrays", []):
        if np.dtype(dtype).kind not in "biuf":
            raise ValueError(f"array {name!r} has dtype {dtype!r}")
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(content, dtype, count, at).reshape(shape)
        at += aligned(arrays[name].nbytes)
    return meta, arrays


def aligned(size: int) -> int:
    """Return the next multiple of 64."""
    return -(-size // 64) * 64


if __name__ == "__main__":
    for kind, meta, arrays in read_stream(sys.argv[1]):
        if kind in (HEADER, LATER):
            print(f"run {meta['run_id']}, behaviours {[b['behavior_id'] for b in meta['behaviors']]}")
        elif kind == MESSAGE:
            shapes = {name: array.shape for name, array in arrays.items()}
            about = f"{meta['time_s']:12.3f} s  {meta['edge']}  {meta['message']['type']}"
            print(f"{meta['sequence']:6} {about}  {shapes}")
        else:
            print(f"index: {len(arrays['offsets'])} messages, {arrays['rows'].sum()} rows")

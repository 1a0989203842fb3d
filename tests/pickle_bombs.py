"""Small `.pt` files that would take gigabytes, or never end, for a reader that believes what they say."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

FOREIGN = "it holds objects other than tensors and plain values "


def archived(path: Path, body: bytes, entries: Mapping[str, bytes] | None = None) -> Path:
    """A `.pt` file with this pickle."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", body)
        for name, content in (entries or {}).items():
            archive.writestr(f"archive/{name}", content)
    return path


def bomb(body: bytes, path: Path) -> Path:
    return archived(path, b"\x80\x02" + body + b".")


def _named(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _number(value: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", value)


def _text(words: str) -> bytes:
    return b"X" + struct.pack("<I", len(words)) + words.encode()


def _encoded(size: int, codec: str) -> bytes:
    """`_codecs.encode(bytearray(size), codec)`."""
    argument = _named("__builtin__", "bytearray") + _number(size) + b"\x85R"
    return _named("_codecs", "encode") + argument + _text(codec) + b"\x86R"


def _doubled(start: bytes, pair: bytes) -> bytes:
    """A value in which each level contains the level below twice, 60 levels deep."""
    levels = (pair.replace(b"#", bytes([level])) for level in range(60))
    return start + b"".join(b"q" + bytes([level]) + each for level, each in enumerate(levels))


def vector_of(size: int = 1, start: bytes = b"K\x00", kind: str = "Float", numbers: int = 1) -> bytes:
    """A vector of equal numbers in the entry `data/0`, which is said to hold some numbers of a kind."""
    persistent = b"(" + _text("storage") + _named("torch", f"{kind}Storage") + _text("0") + _text("cpu")
    view = persistent + _number(numbers) + b"tQ" + start + _number(size) + b"\x85K\x00\x85\x89"
    return _named("torch._utils", "_rebuild_tensor_v2") + b"(" + view + _named("collections", "OrderedDict") + b")RtR"


def _view(vector: bytes, path: Path) -> Path:
    return archived(path, b"\x80\x02" + vector + b".", {"data/0": bytes(4)})


def _many_entries(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(25_000):
            archive.writestr(str(number), b"")
    return path


def _deflated(path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(50_000_000))
    return path


BOMBS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "encoded": (partial(bomb, _encoded(10**10, "hex")), rf"{FOREIGN}\(_codecs.encode\)"),
    "compressed": (partial(bomb, _encoded(10**10, "bz2")), rf"{FOREIGN}\(_codecs.encode\)"),
    "bytearray": (partial(bomb, _named("builtins", "bytearray") + _number(10**12) + b"\x85R"), FOREIGN),
    "called storage": (partial(bomb, _named("torch", "FloatStorage") + _number(10**12) + b"\x85R"), FOREIGN),
    "doubled lists": (partial(bomb, _doubled(b"]", b"]h#ah#a")), "it repeats a list"),
    "doubled tuples": (partial(bomb, _doubled(b"K\x01", b"h#\x86")), "it repeats"),
    "doubled key": (partial(bomb, b"}" + _doubled(b"K\x01\x85", b"h#\x86") + b"K\x01s"), "it repeats"),
    "tuple as key": (partial(bomb, b"}K\x01\x85K\x01s"), "it has a key that is neither text nor a short integer"),
    "colliding keys": (
        partial(
            bomb,
            b"}("
            + b"".join(b"\x8a\x0a" + (k * (2**61 - 1)).to_bytes(10, "little") + b"N" for k in range(1, 70_000))
            + b"u",
        ),
        "it has a key",
    ),
    "list in itself": (partial(bomb, b"]q\x00h\x00a"), "it repeats a list"),
    "deep": (partial(bomb, b"K\x01" + b"\x85" * 500_000), "it nests more than 30"),
    "deep lists": (partial(bomb, b"]" * 400_000 + b"a" * 399_999), "it nests more than 30"),
    "long": (partial(bomb, b"(" + b"}" * 2_000_000 + b"t"), "its entry data.pkl has 2,000,005 bytes"),
    "many values": (partial(bomb, b"(" + b"}" * 1_000_000 + b"t0"), FOREIGN),
    "long integer": (partial(bomb, b"\x8b" + struct.pack("<i", 10**6) + bytes(10**5)), "damaged"),
    "stated text": (partial(bomb, b"X\xff\xff\xff\xff"), "damaged"),
    "huge view": (partial(_view, vector_of(10**10)), "its tensors declare 40,000,000,000 bytes"),
    "far view": (partial(_view, vector_of(start=b"\x8a\x0d" + (2**100).to_bytes(13, "little"))), "damaged"),
    "many entries": (_many_entries, "its list of entries has more than 1,048,576 bytes"),
    "deflated": (_deflated, "its content declares 50,000,000 bytes"),
}
"""Functions that write a file, with the refusal, keyed by what the file does."""

"""Changed bytes for fuzzing: what disks, networks and strangers make of a good file or message."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

INTERESTING = (
    0,
    1,
    2,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    10**6,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**63 - 1,
    2**64 - 1,
)
"""Numbers that lengths and counts are replaced by."""
FORMS = ("<B", "<H", "<I", "<Q", ">H", ">I", ">Q", "varint")


def number(form: str, value: int) -> bytes:
    """A number as a format may write a length."""
    if form == "varint":
        data = bytearray()
        while value > 0x7F:
            data.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes([*data, value])
    return struct.pack(form, value % 256 ** struct.calcsize(form))


@st.composite
def mutated(draw: Callable[..., Any], samples: Sequence[bytes]) -> bytes:
    """One of the samples with one to four changes: flipped bits, cuts, insertions, splices, other lengths; or noise."""
    data = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(
            st.sampled_from(
                ("flip", "flip", "length", "length", "cut", "insert", "remove", "repeat", "splice", "noise")
            )
        )
        at = draw(st.integers(0, len(data)))
        match kind:
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "length":
                written = number(draw(st.sampled_from(FORMS)), draw(st.sampled_from(INTERESTING)))
                data[at : at + len(written)] = written
            case "cut":
                del data[at:]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=16))
            case "remove":
                del data[at : at + draw(st.integers(1, 64))]
            case "repeat":
                data[at:at] = data[at : at + draw(st.integers(1, 64))] * draw(st.integers(1, 50))
            case "splice":
                other = draw(st.sampled_from(samples))
                data[at:] = other[draw(st.integers(0, len(other))) :]
            case "noise" if draw(st.integers(0, 9)) == 0:
                data[:] = draw(st.binary(max_size=256))
    return bytes(data)

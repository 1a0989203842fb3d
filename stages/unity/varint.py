"""Varints: protobuf's encoding of message lengths, seven bits a byte, the lowest first."""

from __future__ import annotations


def varint(value: int) -> bytes:
    """Encode a number of at least 0."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode the number at a byte; returns it and the offset behind it.

    Raises:
        ValueError: if the data ends within it, or it is wider than 32 bits.
    """
    value = 0
    for i, byte in enumerate(data[at : at + 5]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, at + i + 1
    raise ValueError(f"has no length at byte {at:,}")

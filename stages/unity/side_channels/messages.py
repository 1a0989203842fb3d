"""What side channels' messages are made of: booleans, whole numbers, floats, texts, lists of floats; little-endian.

The methods are named as those of ML-Agents, so that channels written for it work here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

_BOOL = struct.Struct("<?")
_INT = struct.Struct("<i")
_FLOAT = struct.Struct("<f")


class IncomingMessage:
    """Reads a message of Unity, value by value.

    A message may end before what is asked for (an older package sends less): then the default is given, and so for
    whatever is asked for afterwards.

    Args:
        buffer: the message.
        offset: where in it to begin.
    """

    def __init__(self, buffer: bytes, offset: int = 0) -> None:
        self.buffer = bytes(buffer)
        self.offset = offset

    def read_bool(self, default_value: bool = False) -> bool:
        """One byte; anything but 0 is true."""
        return bool(self._unpack(_BOOL, default_value))

    def read_int32(self, default_value: int = 0) -> int:
        """Four bytes, with a sign."""
        return int(self._unpack(_INT, default_value))

    def read_float32(self, default_value: float = 0.0) -> float:
        """Four bytes."""
        return float(self._unpack(_FLOAT, default_value))

    def read_float32_list(self, default_value: Sequence[float] | None = None) -> list[float]:
        """Their number (int32), and as many floats; [] where no default is given."""
        data = self._counted(_FLOAT.size)
        if data is None:
            return list(default_value or ())
        return [value for (value,) in _FLOAT.iter_unpack(data)]

    def read_string(self, default_value: str = "") -> str:
        """The number of bytes (int32), and as many of ASCII or UTF-8."""
        data = self._counted(1)
        return default_value if data is None else data.decode("utf-8", errors="replace")

    def get_raw_bytes(self) -> bytes:
        """The whole message, from its first byte on."""
        return self.buffer

    def _take(self, size: int) -> bytes | None:
        """The next bytes; None, and the end of the message, where there are not as many."""
        end = self.offset + size
        if size < 0 or end > len(self.buffer):
            self.offset = len(self.buffer)
            return None
        taken = self.buffer[self.offset : end]
        self.offset = end
        return taken

    def _unpack(self, form: struct.Struct, default: Any) -> Any:
        data = self._take(form.size)
        return default if data is None else form.unpack(data)[0]

    def _counted(self, size: int) -> bytes | None:
        count = self._unpack(_INT, None)
        return None if count is None else self._take(count * size)


class OutgoingMessage:
    """Writes a message for Unity, value by value."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    def write_bool(self, b: bool) -> None:
        """One byte."""
        self.buffer += _BOOL.pack(b)

    def write_int32(self, i: int) -> None:
        """Four bytes, with a sign.

        Raises:
            ValueError: if it is no whole number, or does not fit.
        """
        try:
            self.buffer += _INT.pack(i)
        except struct.error as error:
            raise ValueError(f"{i!r} is not a whole number from -2147483648 to 2147483647") from error

    def write_float32(self, f: float) -> None:
        """Four bytes.

        Raises:
            ValueError: if it is no number, or too great.
        """
        self.buffer += _float(f)

    def write_float32_list(self, float_list: Sequence[float]) -> None:
        """Their number, and the floats.

        Raises:
            ValueError: if one is no number, or too great.
        """
        data = b"".join(map(_float, float_list))
        self.write_int32(len(float_list))
        self.buffer += data

    def write_string(self, s: str) -> None:
        """The number of bytes, and as many of UTF-8; Unity's own channels understand ASCII only."""
        data = s.encode("utf-8")
        self.write_int32(len(data))
        self.buffer += data

    def set_raw_bytes(self, buffer: bytes | bytearray) -> None:
        """Let these be the message.

        Raises:
            ValueError: if something has been written already.
        """
        if self.buffer:
            raise ValueError(f"the message has {len(self.buffer)} bytes already; raw bytes can only be the whole of it")
        self.buffer = bytearray(buffer)


def _float(value: float) -> bytes:
    try:
        return _FLOAT.pack(value)
    except (struct.error, OverflowError) as error:
        raise ValueError(f"{value!r} is not a number that a 32 bit float can hold") from error

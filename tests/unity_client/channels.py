"""Side channels, from Unity's side: what it receives, kept for the report, and what it sends."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

from unity_client.faults import Violation

ENGINE = UUID("e951342c-4f7e-11ea-b238-784f4387d1f7")
PARAMETERS = UUID("534c891e-810f-11ea-a9d0-822485860400")
FLOATS = UUID("60ccf7d0-4f7e-11ea-b238-784f4387d1f7")
STATISTICS = UUID("a1d8f7b7-cec8-50f9-b78b-d3e165a78520")
ANALYTICS = UUID("b664a4a9-d86f-5a5f-95cb-e8353a7e8356")
ECHO = UUID("0dca4da5-1c9c-4d9b-9a4e-2a6fb1a1d3c8")
"""A user's own channel: what comes is sent back, reversed."""

AVERAGE, MOST_RECENT, SUM, HISTOGRAM = range(4)
_ENGINE = {
    0: ("screen", "<ii"),
    1: ("quality_level", "<i"),
    2: ("time_scale", "<f"),
    3: ("target_frame_rate", "<i"),
    4: ("capture_frame_rate", "<i"),
}


class Channels:
    """Everything that the trainer said beside its orders, and what waits to be said."""

    def __init__(self) -> None:
        self.engine: dict[str, list[float]] = {}
        self.parameters: dict[str, Any] = {}
        """The last message about each parameter, as sent."""
        self.floats: dict[str, float] = {}
        self.unknown: list[str] = []
        self._draw: dict[str, Callable[[], float]] = {}
        self._waiting = bytearray()

    def receive(self, data: bytes) -> None:
        """Take frames apart and act on each."""
        rest = memoryview(data)
        while rest:
            if len(rest) < 20:
                raise Violation(f"side channels: {len(rest)} bytes are no frame")
            channel, (size,) = UUID(bytes_le=bytes(rest[:16])), struct.unpack("<i", rest[16:20])
            if not 0 <= size <= len(rest) - 20:
                raise Violation(f"side channel {channel}: a frame of {size} bytes, and {len(rest) - 20} are left")
            self._dispatch(channel, _Reader(bytes(rest[20 : 20 + size])))
            rest = rest[20 + size :]

    def value(self, parameter: str, default: float) -> float:
        """A parameter's value, drawn anew where it is a sampler."""
        draw = self._draw.get(parameter)
        return default if draw is None else draw()

    def tell_statistic(self, name: str, value: float, aggregation: int) -> None:
        self._send(STATISTICS, _text(name) + struct.pack("<fi", value, aggregation))

    def tell_bulk(self, size: int) -> None:
        """Something of a great size, on a channel that nobody else knows."""
        self._send(UUID(int=1), bytes(size))

    def outgoing(self) -> bytes:
        data = bytes(self._waiting)
        self._waiting.clear()
        return data

    def _send(self, channel: UUID, payload: bytes) -> None:
        self._waiting += channel.bytes_le + struct.pack("<i", len(payload)) + payload

    def _dispatch(self, channel: UUID, message: _Reader) -> None:
        if channel == ENGINE:
            (kind,) = message.numbers("<i")
            if kind not in _ENGINE:
                raise Violation(f"engine configuration: there is no kind {kind}")
            name, form = _ENGINE[kind]
            self.engine[name] = list(message.numbers(form))
        elif channel == PARAMETERS:
            self._parameter(message)
        elif channel == FLOATS:
            name = message.text()
            (self.floats[name],) = message.numbers("<f")
        elif channel == ECHO:
            self._send(ECHO, message.rest()[::-1])
        elif channel == ANALYTICS:
            message.rest()
        else:
            self.unknown.append(str(channel))
            message.rest()
        if left := message.rest():
            raise Violation(f"side channel {channel}: {len(left)} bytes too many")

    def _parameter(self, message: _Reader) -> None:
        name = message.text()
        (form,) = message.numbers("<i")
        if form == 0:
            (value,) = message.numbers("<f")
            self.parameters[name] = value
            self._draw[name] = lambda: value
        elif form == 1:
            self._sampler(name, message)
        else:
            raise Violation(f"parameter {name}: there is no type {form}")

    def _sampler(self, name: str, message: _Reader) -> None:
        seed, kind = message.numbers("<ii")
        dice = random.Random(seed)
        if kind == 0:
            numbers = list(message.numbers("<ff"))
            self._draw[name] = lambda: dice.uniform(numbers[0], numbers[1])
        elif kind == 1:
            numbers = list(message.numbers("<ff"))
            self._draw[name] = lambda: dice.gauss(numbers[0], numbers[1])
        elif kind == 2:
            numbers = message.floats()
            pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
            self._draw[name] = lambda: dice.uniform(*dice.choice(pairs))
        else:
            raise Violation(f"parameter {name}: there is no sampler {kind}")
        self.parameters[name] = {
            "sampler": ("uniform", "gaussian", "multirange")[kind],
            "seed": seed,
            "numbers": numbers,
        }


class _Reader:
    """Little-endian values off the front of some bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def numbers(self, form: str) -> tuple[Any, ...]:
        size = struct.calcsize(form)
        return struct.unpack(form, self._take(size))

    def text(self) -> str:
        (size,) = self.numbers("<i")
        return self._take(size).decode("ascii")

    def floats(self) -> list[float]:
        (count,) = self.numbers("<i")
        return list(self.numbers(f"<{count}f"))

    def rest(self) -> bytes:
        return self._take(len(self._data))

    def _take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data):
            raise Violation(f"a message ends {size - len(self._data)} bytes early")
        taken, self._data = self._data[:size], self._data[size:]
        return taken


def _text(text: str) -> bytes:
    data = text.encode("ascii")
    return struct.pack("<i", len(data)) + data

"""Side channels and their messages, which hold booleans, integers, floats, strings and lists of floats (little-endian).

Methods have ML-Agents' names, so channels written for it work here. `SideChannels` holds all channels of one worker.
"""

from __future__ import annotations

import logging
import struct
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from headrace.stages.environments.engines.errors import GameBroken
from headrace.stages.environments.engines.unity.errors import ChannelMisused
from headrace.stages.errors import StageError, describe_error

_BOOL = struct.Struct("<?")
_INT = struct.Struct("<i")
_FLOAT = struct.Struct("<f")
log = logging.getLogger(__name__)

_HEAD = struct.Struct("<16si")
"""Header of each message: the channel's id in the byte order of .NET, and the number of bytes that follow."""
TRAINING_ANALYTICS = uuid.UUID("b664a4a9-d86f-5a5f-95cb-e8353a7e8356")
"""Id of the channel that packages use to gather analytics. Headrace ignores its messages."""


class IncomingMessage:
    """Reads a message from Unity, value by value.

    Reading past the end of a message returns the defaults, because older packages send fewer values.

    Args:
        buffer: the message.
        offset: the offset of the message's first value.
    """

    def __init__(self, buffer: bytes, offset: int = 0) -> None:
        self.buffer = bytes(buffer)
        self.offset = offset

    def read_bool(self, default_value: bool = False) -> bool:
        """Read one byte; anything but 0 is true."""
        return bool(self._unpack(_BOOL, default_value))

    def read_int32(self, default_value: int = 0) -> int:
        """Read four bytes as a signed integer."""
        return int(self._unpack(_INT, default_value))

    def read_float32(self, default_value: float = 0.0) -> float:
        """Read four bytes as a float."""
        return float(self._unpack(_FLOAT, default_value))

    def read_float32_list(self, default_value: Sequence[float] | None = None) -> list[float]:
        """Read a count (int32) and that number of floats; the default is []."""
        data = self._counted(_FLOAT.size)
        if data is None:
            return list(default_value or ())
        return [value for (value,) in _FLOAT.iter_unpack(data)]

    def read_string(self, default_value: str = "") -> str:
        """Read a byte count (int32) and that number of bytes, in ASCII or UTF-8."""
        data = self._counted(1)
        return default_value if data is None else data.decode("utf-8", errors="replace")

    def get_raw_bytes(self) -> bytes:
        """Return the entire message."""
        return self.buffer

    def _next(self, size: int) -> bytes | None:
        """Return the next bytes; if fewer are left, go to the end and return None."""
        end = self.offset + size
        if size < 0 or end > len(self.buffer):
            self.offset = len(self.buffer)
            return None
        data = self.buffer[self.offset : end]
        self.offset = end
        return data

    def _unpack(self, form: struct.Struct, default: Any) -> Any:
        data = self._next(form.size)
        return default if data is None else form.unpack(data)[0]

    def _counted(self, size: int) -> bytes | None:
        count = self._unpack(_INT, None)
        return None if count is None else self._next(count * size)


class OutgoingMessage:
    """Writes a message for Unity, value by value."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    def write_bool(self, b: bool) -> None:
        """Write one byte."""
        self.buffer += _BOOL.pack(b)

    def write_int32(self, i: int) -> None:
        """Write four bytes, as a signed integer.

        Raises:
            ValueError: if the value is not an integer, or does not fit.
        """
        try:
            self.buffer += _INT.pack(i)
        except struct.error as error:
            raise ValueError(f"{i!r} is not a whole number from -2147483648 to 2147483647") from error

    def write_float32(self, f: float) -> None:
        """Write four bytes, as a float.

        Raises:
            ValueError: if the value is not a number, or too large.
        """
        self.buffer += _float(f)

    def write_float32_list(self, float_list: Sequence[float]) -> None:
        """Write a count, then the floats.

        Raises:
            ValueError: if a value is not a number, or too large.
        """
        data = b"".join(map(_float, float_list))
        self.write_int32(len(float_list))
        self.buffer += data

    def write_string(self, s: str) -> None:
        """Write a byte count, then the text in UTF-8. Unity's own channels support only ASCII."""
        data = s.encode("utf-8")
        self.write_int32(len(data))
        self.buffer += data

    def set_raw_bytes(self, buffer: bytes | bytearray) -> None:
        """Set the entire message.

        Raises:
            ValueError: if the message is not empty.
        """
        if self.buffer:
            raise ValueError(f"the message has {len(self.buffer)} bytes, but raw bytes must be the entire message")
        self.buffer = bytearray(buffer)


class SideChannel(ABC):
    """Base class of side channels: each carries one kind of message, and has the same id on both sides.

    Attributes:
        message_queue: messages to send with the next exchange, the oldest first.

    Args:
        channel_id: the channel's id, as in Unity's class.
    """

    def __init__(self, channel_id: uuid.UUID) -> None:
        self._channel_id = channel_id
        self.message_queue: list[bytes | bytearray] = []

    @property
    def channel_id(self) -> uuid.UUID:
        """The channel's id, as in Unity's class."""
        return self._channel_id

    @abstractmethod
    def on_message_received(self, msg: IncomingMessage) -> None:
        """Handle a message from Unity; a step's messages arrive in order."""

    def queue_message_to_send(self, msg: OutgoingMessage) -> None:
        """Send a message with the next exchange."""
        self.message_queue.append(bytes(msg.buffer))


class SendingChannel(SideChannel):
    """A channel from Python to Unity only."""

    def on_message_received(self, msg: IncomingMessage) -> None:
        """Ignore the message; Unity's packages send none on this channel."""


def _float(value: float) -> bytes:
    try:
        return _FLOAT.pack(value)
    except (struct.error, OverflowError) as error:
        raise ValueError(f"{value!r} can't be stored in a 32-bit float") from error


class SideChannels:
    """Collects the channels' outgoing messages, and passes each channel the messages received for it.

    Channels may be instances of ML-Agents' own classes.

    Args:
        channels: all channels of the worker.
        worker: the worker's name (`Unity worker 3`), for messages.

    Raises:
        ChannelMisused: if two channels have the same id.
    """

    def __init__(self, channels: Iterable[SideChannel], worker: str = "Unity") -> None:
        self._worker = worker
        self._by_id: dict[uuid.UUID, SideChannel] = {}
        self._warned = {TRAINING_ANALYTICS}
        for channel in channels:
            other = self._by_id.setdefault(channel.channel_id, channel)
            if other is not channel:
                raise ChannelMisused(
                    f"{worker}: the side channels {_named(other)} and {_named(channel)} have the same id, "
                    f"{channel.channel_id}; give each a unique id"
                )

    @property
    def by_class(self) -> dict[str, SideChannel]:
        """The channels, keyed by class name. If several channels have the same class, only the last is included."""
        return {type(channel).__name__: channel for channel in self._by_id.values()}

    def outgoing(self) -> bytes:
        """Encode and clear the queued messages, channel by channel, each in order."""
        parts: list[bytes | bytearray] = []
        for channel_id, channel in self._by_id.items():
            for message in channel.message_queue:
                parts += (_HEAD.pack(channel_id.bytes_le, len(message)), message)
            channel.message_queue.clear()
        return b"".join(parts)

    def incoming(self, data: bytes) -> None:
        """Pass each channel its messages, and warn once about each id without a channel.

        Raises:
            GameBroken: if the data can't be decoded; no message is passed on in this case.
            StageError: if a channel fails to handle a message.
        """
        if not data:
            return
        for channel_id, message in list(self._messages(data)):
            channel = self._by_id.get(channel_id)
            if channel is not None:
                self._deliver(channel, message)
            elif channel_id not in self._warned:
                self._warned.add(channel_id)
                log.warning(
                    "%s sends messages on the side channel %s, for which no class is configured; Headrace drops them. "
                    "If the channel is your own, list its class under env_settings.side_channels",
                    self._worker,
                    channel_id,
                )

    def _messages(self, data: bytes) -> Iterator[tuple[uuid.UUID, bytes]]:
        at = 0
        while at < len(data):
            begin = at + _HEAD.size
            if begin > len(data):
                raise self._broken(data, at, f"{_HEAD.size} bytes of its header")
            guid, length = _HEAD.unpack_from(data, at)
            at = begin + length
            if length < 0 or at > len(data):
                size = f"{length:,} bytes" if length >= 0 else "a negative number of bytes"
                raise self._broken(data, begin, f"a message of {size}, according to its header,")
            yield uuid.UUID(bytes_le=guid), data[begin:at]

    def _broken(self, data: bytes, at: int, expected: str) -> GameBroken:
        return GameBroken(
            f"{self._worker}: its side-channel data can't be read: expected {expected} at byte {at}, and "
            f"{len(data) - at} bytes are left of {len(data)}"
        )

    def _deliver(self, channel: SideChannel, message: bytes) -> None:
        try:
            channel.on_message_received(IncomingMessage(message))
        except StageError:
            raise
        except Exception as error:
            raise StageError(
                f"{self._worker}: the side channel {_named(channel)} ({channel.channel_id}) failed with a message of "
                f"{len(message)} bytes: {describe_error(error)}"
            ) from error


def _named(channel: SideChannel) -> str:
    return type(channel).__name__

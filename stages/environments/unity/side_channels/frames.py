"""All side channels of one worker, and the encoding of their messages."""

from __future__ import annotations

import logging
import struct
import uuid
from collections.abc import Iterable, Iterator

from headrace.stages.environments.unity.errors import ChannelMisused, UnityBroken
from headrace.stages.environments.unity.side_channels.channel import IncomingMessage, SideChannel
from headrace.stages.error_text import describe_error
from headrace.stages.errors import StageError

log = logging.getLogger(__name__)

_HEAD = struct.Struct("<16si")
"""Header of each message: the channel's id in the byte order of .NET, and the number of bytes that follow."""

TRAINING_ANALYTICS = uuid.UUID("b664a4a9-d86f-5a5f-95cb-e8353a7e8356")
"""A channel of packages that gather analytics; ignored here."""


class SideChannels:
    """Collects the channels' outgoing messages, and passes received ones to them.

    Channels may be of ML-Agents' own classes.

    Args:
        channels: all of the worker.
        worker: its name (`Unity worker 3`), for messages.

    Raises:
        ChannelMisused: if two have one id.
    """

    def __init__(self, channels: Iterable[SideChannel], worker: str = "Unity") -> None:
        self._worker = worker
        self._by_id: dict[uuid.UUID, SideChannel] = {}
        self._warned = {TRAINING_ANALYTICS}
        for channel in channels:
            other = self._by_id.setdefault(channel.channel_id, channel)
            if other is not channel:
                raise ChannelMisused(
                    f"{worker}: the side channels {_named(other)} and {_named(channel)} have one id, "
                    f"{channel.channel_id}; give each its own"
                )

    def outgoing(self) -> bytes:
        """Encode and clear the queued messages, channel by channel, each in order."""
        parts: list[bytes | bytearray] = []
        for channel_id, channel in self._by_id.items():
            for message in channel.message_queue:
                parts += (_HEAD.pack(channel_id.bytes_le, len(message)), message)
            channel.message_queue.clear()
        return b"".join(parts)

    def incoming(self, data: bytes) -> None:
        """Pass each channel its messages, and warn once of each id without a channel.

        Raises:
            UnityBroken: if the data can't be decoded; no message is passed on then.
            StageError: if a channel fails with a message.
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
                    "%s sends messages on the side channel %s, which no class here handles; they are dropped. If it "
                    "is your own, name its class under env_settings.side_channels",
                    self._worker,
                    channel_id,
                )

    def _messages(self, data: bytes) -> Iterator[tuple[uuid.UUID, bytes]]:
        at = 0
        while at < len(data):
            begin = at + _HEAD.size
            if begin > len(data):
                raise self._broken(data, at, f"{_HEAD.size} bytes of its head")
            guid, length = _HEAD.unpack_from(data, at)
            at = begin + length
            if length < 0 or at > len(data):
                size = f"{length:,} bytes" if length >= 0 else "a negative number of bytes"
                raise self._broken(data, begin, f"a message of {size}, as its head says,")
            yield uuid.UUID(bytes_le=guid), data[begin:at]

    def _broken(self, data: bytes, at: int, expected: str) -> UnityBroken:
        return UnityBroken(
            f"{self._worker}: what it sent on its side channels can't be read: expected {expected} at byte {at}, and "
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

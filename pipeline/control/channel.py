"""The control channel: one bounded, ordered channel between each host and main, separate from the data queues.

Within a process, messages are passed as objects; between processes they are msgpack frames (a little-endian four-byte
length, then the body). Nothing is pickled.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, fields
from typing import Any, Protocol, Self

import msgpack

from headrace.pipeline.control.messages import ControlMessage
from headrace.queues.agent_manager_queue import AgentManagerQueue
from headrace.queues.ends import Receiver, Sender
from headrace.queues.errors import QueueClosed
from headrace.queues.packing import pack, unpack

_TYPES: dict[str, type[Any]] = {kind.__name__: kind for kind in ControlMessage.__args__}

CONTROL_BOUND = 1024
"""Maximum number of messages in transit per direction. Hosts send a few per second, so a full channel means that main
is stuck."""

MAX_FRAME = 64 * 1024 * 1024
_LENGTH = struct.Struct("<I")
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class ControlError(Exception):
    """A control channel carried something other than a control message."""


def encode(message: ControlMessage) -> bytes:
    """Return a message as msgpack."""
    values = [getattr(message, item.name) for item in fields(message)]
    return pack([type(message).__name__, *values])  # type: ignore[no-any-return]


def decode(frame: bytes) -> ControlMessage:
    """Decode a frame produced by `encode`; tuples at the top level are restored as tuples.

    Raises:
        ControlError: if the frame is not a control message.
    """
    try:
        name, *values = unpack(frame)
        kind = _TYPES[name]
        return kind(*(tuple(value) if isinstance(value, list) else value for value in values))  # type: ignore[no-any-return]
    except (KeyError, TypeError, ValueError, msgpack.UnpackException) as error:
        raise ControlError(f"not a control message: {error!r}") from error


class ControlEnd(Protocol):
    """One end of a control channel."""

    def send(self, message: ControlMessage) -> None:
        """Send a message without waiting. Messages arrive in the order in which they were sent."""

    async def drain(self) -> None:
        """Wait while more messages than the bound are in transit; call this when sending in a loop."""

    def receive(self) -> AsyncIterator[ControlMessage]:
        """Iterate over the messages until the other end closes or dies."""

    def close(self) -> None:
        """Stop sending. Closing twice is allowed."""


@dataclass
class LocalControl:
    """A channel end within one event loop, backed by two queues, one per direction."""

    _outbox: Sender[ControlMessage]
    _inbox: Receiver[ControlMessage]

    def send(self, message: ControlMessage) -> None:
        """Send a message without waiting."""
        with contextlib.suppress(QueueClosed):
            self._outbox.put_nowait(message)

    async def drain(self) -> None:
        """Let the other end's task run."""
        await asyncio.sleep(0)

    async def receive(self) -> AsyncIterator[ControlMessage]:
        """Iterate over the messages until the other end closes."""
        async for message in self._inbox:
            yield message

    def close(self) -> None:
        """Stop sending."""
        self._outbox.close()


def local_pair(name: str) -> tuple[LocalControl, LocalControl]:
    """Return both ends of a channel within one event loop: main's end, then the host's end."""
    down: AgentManagerQueue[ControlMessage] = AgentManagerQueue(f"control down {name}", CONTROL_BOUND)
    up: AgentManagerQueue[ControlMessage] = AgentManagerQueue(f"control up {name}", CONTROL_BOUND)
    return LocalControl(down, up), LocalControl(up, down)


class SocketControl:
    """A channel end between processes, on two connected sockets.

    Each socket carries one direction. With a single socket, if main wrote to a host that has just ended, the connection
    would break and lose the host's last message: the reason for its failure.
    """

    def __init__(self, inward: Streams, outward: Streams) -> None:
        self._inward = inward
        self._outward = outward
        self.idle = False
        """True while `receive` waits for a message."""

    @classmethod
    async def open(cls, inward: socket.socket, outward: socket.socket) -> Self:
        """Open an end that receives on one socket and sends on the other, taking ownership of both."""
        return cls(await asyncio.open_connection(sock=inward), await asyncio.open_connection(sock=outward))

    def send(self, message: ControlMessage) -> None:
        """Send a message without waiting."""
        _, writer = self._outward
        if not writer.is_closing():
            body = encode(message)
            writer.write(_LENGTH.pack(len(body)) + body)

    async def drain(self) -> None:
        """Wait until most of the sent data is in the socket's buffer."""
        with contextlib.suppress(ConnectionError):
            await self._outward[1].drain()

    async def receive(self) -> AsyncIterator[ControlMessage]:
        """Iterate over the messages until the other end closes or dies."""
        reader, _ = self._inward
        while True:
            try:
                self.idle = True
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                self.idle = False
                if length > MAX_FRAME:
                    raise ControlError(f"a control frame declares {length} bytes, but at most {MAX_FRAME} are allowed")
                frame = await reader.readexactly(length)
            except (asyncio.IncompleteReadError, ConnectionError):
                break
            yield decode(frame)
        _, writer = self._outward
        writer.transport.abort()  # the other end has closed
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()  # or asyncio would report a failed send a second time

    def close(self) -> None:
        """Stop sending and receiving; closing twice is allowed."""
        for _, writer in (self._inward, self._outward):
            writer.close()

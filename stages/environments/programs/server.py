"""The TCP server that one game calls, and the exchange of messages with it: a request, and the one answer to it.

A message is bytes behind their number (u32, little-endian), in both directions.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable

from headrace.config.listen import LOCALHOST
from headrace.stages.environments.programs.errors import ProgramRefused

log = logging.getLogger(__name__)

ADDRESS = "127.0.0.1"
"""Where games on this machine call, always."""
_CALLERS = 16
"""Connections that are heard at a time until one of them says something."""
HEADER = struct.Struct("<I")
"""The number of bytes that follow, before each message."""


def framed(content: bytes) -> bytes:
    """Return a message as it is sent."""
    return HEADER.pack(len(content)) + content


class ConnectionClosed(Exception):
    """The game has closed the connection; `in_answer` says whether it did so in the middle of an answer."""

    def __init__(self, in_answer: bool = False) -> None:
        super().__init__()
        self.in_answer = in_answer


class TooLarge(Exception):
    """The game announces a message above the limit, by the bytes of `header` if it has one."""

    def __init__(self, size: int, header: bytes = b"") -> None:
        super().__init__()
        self.size = size
        self.header = header


class GameServer(ABC):
    """Listens at a port for one game; whoever calls while it is connected is turned away.

    Args:
        port: 0 for any that is free.
        max_bytes: the largest message.

    Attributes:
        port: the real one after `start`.
    """

    def __init__(self, port: int, max_bytes: int) -> None:
        self.port = port
        self._max_bytes = max_bytes
        self._server: asyncio.Server | None = None
        self._connected = asyncio.Event()

    async def start(self, name: str, cure: str) -> None:
        """Listen.

        Args:
            name: of the game, for messages.
            cure: what to do if the port is taken.

        Raises:
            ProgramRefused: if the port can't be used.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._protocol_factory(), ADDRESS, self.port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                what = f"{name}: port {self.port} can't be used: {error.strerror or error}. {cure}"
            else:
                what = f"{name}: port {self.port} of {LOCALHOST} is in use by another program. {cure}"
            raise ProgramRefused(what) from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def connected(self) -> None:
        """Wait until a game is connected."""
        await self._connected.wait()

    @property
    @abstractmethod
    def arrived(self) -> tuple[int, int] | None:
        """Bytes of a message that is not whole yet, and how many it announces; None without one."""

    @property
    @abstractmethod
    def unasked(self) -> bool:
        """True if something has arrived that nobody has received yet."""

    @abstractmethod
    def send(self, content: bytes) -> None:
        """Send a message; nothing happens if the game is gone, which `receive` tells."""

    @abstractmethod
    async def receive(self) -> bytes:
        """Wait for the game's message.

        Raises:
            ConnectionClosed: if it closes the connection, or has done so.
            TooLarge: if the message is above the limit.
        """

    @abstractmethod
    def interrupt(self, error: Exception) -> None:
        """Let `receive` raise an error, now or at its next call."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection and stop listening; closing twice is allowed."""

    @abstractmethod
    def _protocol_factory(self) -> Callable[[], asyncio.BaseProtocol]:
        """Return what asyncio calls for each connection."""

    def _warn_of_second(self) -> None:
        log.warning(
            "A second program calls port %d, at which a game is connected: it is turned away. Each build needs a "
            "port of its own (env_settings.base_port), and one game can't be trained by two runs.",
            self.port,
        )


class TcpServer(GameServer):
    """A `GameServer` of plain TCP: of those who call, the game is who says something first."""

    def __init__(self, port: int, max_bytes: int) -> None:
        super().__init__(port, max_bytes)
        self._connection: _Connection | None = None
        self._callers: list[_Connection] = []
        """Before it is known which of them is the game."""
        self._sent: list[bytes] = []
        """By then, for whoever calls later."""
        self._known = asyncio.Event()
        self._error: Exception | None = None

    @property
    def arrived(self) -> tuple[int, int] | None:
        """As of `GameServer`."""
        return None if self._connection is None else self._connection.arrived

    @property
    def unasked(self) -> bool:
        """As of `GameServer`."""
        return self._connection is not None and self._connection.unread

    def send(self, content: bytes) -> None:
        """As of `GameServer`."""
        if self._connection is None:
            self._sent.append(content)
        for each in self._callers if self._connection is None else [self._connection]:
            each.send(content)

    async def receive(self) -> bytes:
        """As of `GameServer`."""
        if self._connection is None and self._callers and self._error is None:
            await self._known.wait()
        if self._connection is None:
            raise self._error or ConnectionClosed()
        return await self._connection.message()

    def interrupt(self, error: Exception) -> None:
        """As of `GameServer`."""
        if self._connection is not None:
            self._connection.fail(error)
        elif self._callers:
            self._error = self._error or error
            self._known.set()

    def close(self) -> None:
        """As of `GameServer`."""
        for each in (*self._callers, *([self._connection] if self._connection is not None else [])):
            each.close()
        if self._server is not None:
            self._server.close()

    def _protocol_factory(self) -> Callable[[], asyncio.BaseProtocol]:
        return lambda: _Connection(self)

    def _called_by(self, connection: _Connection) -> bool:
        """Hear a connection until the game is known; False if that is another."""
        if self._connection is not None:
            self._warn_of_second()
            return False
        if len(self._callers) >= _CALLERS:  # a game says something soon
            self._callers.pop(0).close()
        self._callers.append(connection)
        self._connected.set()
        return True

    def _told_by(self, connection: _Connection) -> None:
        """The first bytes of a connection have come: it is the game's if it is the first."""
        if self._connection is not None:
            return
        self._connection, others = connection, [each for each in self._callers if each is not connection]
        self._callers, self._sent = [], []
        self._known.set()
        if others:
            self._warn_of_second()
        for each in others:
            each.close()

    def _lost(self, connection: _Connection) -> None:
        """A connection has ended."""
        if connection in self._callers:
            self._callers.remove(connection)
            if not self._callers:
                self._error = self._error or ConnectionClosed()
                self._known.set()


class _Connection(asyncio.Protocol):
    """A connection with a program that has called; its messages are put together from what arrives."""

    def __init__(self, server: TcpServer) -> None:
        self._server = server
        self._max_bytes = server._max_bytes
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._wanted = HEADER.size
        self._waiting: asyncio.Future[None] | None = None
        self._error: Exception | None = None

    @property
    def unread(self) -> bool:
        """True if bytes have arrived that no message was made of."""
        return bool(self._buffer)

    @property
    def arrived(self) -> tuple[int, int] | None:
        """Bytes of a message that is not whole yet, and how many it announces."""
        if self._wanted == HEADER.size:
            return None
        return len(self._buffer) - HEADER.size, self._wanted - HEADER.size

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection if it is the first one; asyncio calls this, which sets TCP_NODELAY."""
        assert isinstance(transport, asyncio.Transport)
        if self._server._called_by(self):
            self._transport = transport
            for content in self._server._sent:
                self.send(content)
        else:
            transport.close()

    def data_received(self, data: bytes) -> None:
        """Add what has arrived; asyncio calls this."""
        self._server._told_by(self)
        self._buffer += data
        if len(self._buffer) > self._max_bytes + HEADER.size:  # message upon message that nobody has asked for
            self.fail(TooLarge(len(self._buffer)))
            self.close()
        if len(self._buffer) >= self._wanted and self._whole():
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who waits; asyncio calls this."""
        self._server._lost(self)
        self.fail(ConnectionClosed(bool(self._buffer)))

    def send(self, content: bytes) -> None:
        """Send a message."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(framed(content))

    async def message(self) -> bytes:
        """Wait for a message; raises as `TcpServer.receive`."""
        while not self._whole():
            if self._error is not None:
                raise self._error
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        content = bytes(memoryview(self._buffer)[HEADER.size : self._wanted])
        del self._buffer[: self._wanted]
        self._wanted = HEADER.size
        return content

    def fail(self, error: Exception) -> None:
        """Let `message` raise an error from now on, once no whole message is left; the first one stays."""
        if self._error is None:
            self._error = error
        self._wake()

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def _whole(self) -> bool:
        """Return True if a whole message is there; reads its length as soon as that is.

        Raises:
            TooLarge: if it is announced to be above the limit.
        """
        if len(self._buffer) < HEADER.size:
            return False
        if self._wanted == HEADER.size:
            (size,) = HEADER.unpack_from(self._buffer)
            if size > self._max_bytes:
                self.fail(TooLarge(size, bytes(self._buffer[: HEADER.size])))
                self.close()
                return False
            self._wanted = HEADER.size + size
        return len(self._buffer) >= self._wanted

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

"""The interface of the transports over which a game exchanges messages with Headrace, and the transport for plain TCP.

Each request gets one answer. Over TCP, in both directions, a message consists of its length in bytes (u32,
little-endian) and its bytes.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable

from headrace.config.listen import LOCALHOST
from headrace.stages.environments.engines.errors import GameRefused, PortTaken

log = logging.getLogger(__name__)

ADDRESS = "127.0.0.1"
"""The address that games on this machine always connect to."""
_CALLERS = 16
"""Maximum number of concurrent connections until one of them sends data.

Few programs connect by mistake (a port scanner, a game of an earlier run), so 16 leaves room for all of them. Even with
many games, 16 for each are a small part of the file descriptors that a process may open (often 256 or 1,024).
"""
HEADER = struct.Struct("<I")
"""The length that precedes each message."""


def framed(content: bytes) -> bytes:
    """Return a message as it is sent: its length, then its content."""
    return HEADER.pack(len(content)) + content


class ConnectionClosed(Exception):
    """The game has closed the connection; `in_answer` is True if it did so in the middle of an answer."""

    def __init__(self, in_answer: bool = False) -> None:
        super().__init__()
        self.in_answer = in_answer


class TooLarge(Exception):
    """The game sends a message above the limit.

    `size` is the announced size in bytes, or None if it is unknown. `header` holds the bytes of the announced length,
    or is empty.
    """

    def __init__(self, size: int | None = None, header: bytes = b"") -> None:
        super().__init__()
        self.size = size
        self.header = header


class Transport(ABC):
    """Listens on a port for one game, and refuses all other connections while the game is connected.

    Args:
        port: the port; 0 for any free one.
        max_bytes: the largest message.

    Attributes:
        port: the port; if it was 0, `start` sets the actual port.
    """

    def __init__(self, port: int, max_bytes: int) -> None:
        self.port = port
        self._max_bytes = max_bytes
        self._connected = asyncio.Event()

    @abstractmethod
    async def start(self, name: str, cure: str) -> None:
        """Start listening.

        Args:
            name: the game's name, used in messages.
            cure: the remedy if the port is taken.

        Raises:
            GameRefused: if the port can't be used.
        """

    async def connected(self) -> None:
        """Wait until a game is connected."""
        await self._connected.wait()

    @property
    def arrived(self) -> tuple[int, int] | None:
        """Bytes received of an incomplete message, and that message's announced size.

        None if there is no such message, or if the transport does not know.
        """
        return None

    @property
    @abstractmethod
    def unasked(self) -> bool:
        """True if data has arrived that was not requested."""

    @abstractmethod
    def send(self, content: bytes) -> None:
        """Send a message. Does nothing if the game is gone, because `receive` reports that."""

    @abstractmethod
    async def receive(self) -> bytes:
        """Wait for the game's message.

        Raises:
            ConnectionClosed: if the game closes the connection, or has closed it.
            TooLarge: if the message is above the limit.
        """

    @abstractmethod
    def interrupt(self, error: Exception) -> None:
        """Make `receive` raise an error, now or at its next call. Later errors have no effect."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection and stop listening; closing twice is allowed."""


class SocketTransport(Transport):
    """A transport that asyncio's own server listens for, always on this machine's address."""

    def __init__(self, port: int, max_bytes: int) -> None:
        super().__init__(port, max_bytes)
        self._server: asyncio.Server | None = None

    async def start(self, name: str, cure: str) -> None:
        """See `Transport`."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._protocol_factory(), ADDRESS, self.port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                reason = error.strerror or error
                raise GameRefused(f"{name}: port {self.port} can't be used: {reason}. {cure}") from error
            what = f"{name}: port {self.port} of {LOCALHOST} is in use by another program. {cure}"
            raise PortTaken(what) from error
        self.port = self._server.sockets[0].getsockname()[1]

    @abstractmethod
    def _protocol_factory(self) -> Callable[[], asyncio.BaseProtocol]:
        """Return the protocol that asyncio needs for a connection."""

    def _warn_of_second(self) -> None:
        log.warning(
            "Rejected a second connection to port %d, to which a game is already connected. Each build needs its own "
            "port (env_settings.base_port), and two runs can't train the same game.",
            self.port,
        )


class TcpTransport(SocketTransport):
    """A transport for plain TCP: the first connection that sends data belongs to the game.

    A connection alone proves nothing, because other programs may connect and stay silent: a port scanner, a web browser
    that opens a second connection, or a game of an earlier run that has been stopped. So each connection gets the
    requests until one of them answers, which only the game can.
    """

    def __init__(self, port: int, max_bytes: int) -> None:
        super().__init__(port, max_bytes)
        self._connection: _Connection | None = None
        self._callers: list[_Connection] = []
        """The open connections, until one of them proves to be the game's."""
        self._sent: list[bytes] = []
        """The messages sent before the game's connection is known; each later connection gets them too."""
        self._chosen = asyncio.Event()
        self._error: Exception | None = None

    @property
    def arrived(self) -> tuple[int, int] | None:
        """See `Transport`."""
        return None if self._connection is None else self._connection.arrived

    @property
    def unasked(self) -> bool:
        """See `Transport`."""
        return self._connection is not None and self._connection.unread

    def send(self, content: bytes) -> None:
        """See `Transport`."""
        if self._connection is None:
            self._sent.append(content)
        for connection in self._callers if self._connection is None else [self._connection]:
            connection.send(content)

    async def receive(self) -> bytes:
        """See `Transport`."""
        if self._connection is None and self._callers and self._error is None:
            await self._chosen.wait()
        if self._connection is None:
            raise self._error or ConnectionClosed()
        return await self._connection.message()

    def interrupt(self, error: Exception) -> None:
        """See `Transport`."""
        if self._connection is not None:
            self._connection.fail(error)
        elif self._callers:
            self._error = self._error or error
            self._chosen.set()

    async def close(self) -> None:
        """See `Transport`."""
        for connection in (*self._callers, *([self._connection] if self._connection is not None else [])):
            connection.close()
        if self._server is not None:
            self._server.close()

    def _protocol_factory(self) -> Callable[[], asyncio.BaseProtocol]:
        return lambda: _Connection(self)

    def _on_connect(self, connection: _Connection) -> bool:
        """Accept a connection and return True, or return False if a different one is known to be the game's."""
        if self._connection is not None:
            self._warn_of_second()
            return False
        if len(self._callers) >= _CALLERS:  # drop the oldest connection: a game sends data soon
            self._callers.pop(0).close()
        self._callers.append(connection)
        self._connected.set()
        return True

    def _on_first_bytes(self, connection: _Connection) -> None:
        """Handle a connection's first bytes: the first connection to send any belongs to the game."""
        if self._connection is not None:
            return
        self._connection, others = connection, [caller for caller in self._callers if caller is not connection]
        self._callers, self._sent = [], []
        self._chosen.set()
        if others:
            self._warn_of_second()
        for caller in others:
            caller.close()

    def _on_end(self, connection: _Connection) -> None:
        """Handle the end of a connection."""
        if connection in self._callers:
            self._callers.remove(connection)
            if not self._callers:
                self._error = self._error or ConnectionClosed()
                self._chosen.set()


class _Connection(asyncio.Protocol):
    """A connection from a program. It assembles messages from the bytes that arrive."""

    def __init__(self, server: TcpTransport) -> None:
        self._server = server
        self._max_bytes = server._max_bytes
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._wanted = HEADER.size
        self._waiting: asyncio.Future[None] | None = None
        self._error: Exception | None = None

    @property
    def unread(self) -> bool:
        """True if bytes have arrived that are not part of a received message."""
        return bool(self._buffer)

    @property
    def arrived(self) -> tuple[int, int] | None:
        """Bytes received of an incomplete message, and that message's announced size.

        None if there is no such message.
        """
        if self._wanted == HEADER.size:
            return None
        return len(self._buffer) - HEADER.size, self._wanted - HEADER.size

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the connection if the server accepts it. Called by asyncio, which has set TCP_NODELAY."""
        assert isinstance(transport, asyncio.Transport)
        if self._server._on_connect(self):
            self._transport = transport
            for content in self._server._sent:
                self.send(content)
        else:
            transport.close()

    def data_received(self, data: bytes) -> None:
        """Add the bytes that have arrived. Called by asyncio."""
        self._server._on_first_bytes(self)
        self._buffer += data
        if len(self._buffer) > self._max_bytes + HEADER.size:  # a flood of unrequested messages
            self.fail(TooLarge(len(self._buffer)))
            self.close()
        if len(self._buffer) >= self._wanted and self._whole():
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the waiting reader. Called by asyncio."""
        self._server._on_end(self)
        self.fail(ConnectionClosed(bool(self._buffer)))

    def send(self, content: bytes) -> None:
        """Send a message."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(framed(content))

    async def message(self) -> bytes:
        """Wait for a message. Raises the same errors as `TcpTransport.receive`."""
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
        """Make `message` raise an error once no complete message remains; later errors have no effect."""
        if self._error is None:
            self._error = error
        self._wake()

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def _whole(self) -> bool:
        """Return True if a complete message is available. Reads the message's length as soon as it has arrived.

        If the length is above the limit, `message` raises a `TooLarge`, and the connection is closed.
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

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
from collections import deque
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
        self._messages: deque[bytes] = deque()
        """The messages that have arrived and were not received."""
        self._news = asyncio.Event()
        self._error: Exception | None = None

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
    def unasked(self) -> bool:
        """True if data has arrived that `receive` has not returned."""
        return bool(self._messages)

    @abstractmethod
    def send(self, content: bytes) -> None:
        """Send a message. Does nothing if the game is gone, because `receive` reports that."""

    async def receive(self) -> bytes:
        """Wait for the game's message. Cancellation loses no message.

        Raises:
            ConnectionClosed: if the game closes the connection, or has closed it.
            TooLarge: if the message is above the limit.
            Exception: the error passed to `interrupt`.
        """
        while not self._messages:
            if self._error is not None:
                raise self._error
            self._news.clear()
            await self._news.wait()
        return self._messages.popleft()

    def interrupt(self, error: Exception) -> None:
        """Make `receive` raise an error once no message is left; later errors have no effect."""
        self._error = self._error or error
        self._news.set()

    def _take(self, content: bytes) -> bool:
        """Keep a message for `receive`; return False if too many unrequested messages have arrived."""
        self._messages.append(content)
        self._news.set()
        total = sum(map(len, self._messages))
        if total > self._max_bytes:
            self.interrupt(TooLarge(total))
        return total <= self._max_bytes

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
        self._game: _Connection | None = None
        """The game's connection, once it is known."""
        self._callers: list[_Connection] = []
        """The open connections, until one of them proves to be the game's."""
        self._sent: list[bytes] = []
        """The messages sent before the game's connection is known; each later connection gets them too."""

    @property
    def arrived(self) -> tuple[int, int] | None:
        """See `Transport`."""
        return None if self._game is None else self._game.arrived

    @property
    def unasked(self) -> bool:
        """See `Transport`."""
        return super().unasked or (self._game is not None and bool(self._game.buffer))

    def send(self, content: bytes) -> None:
        """See `Transport`."""
        if self._game is None:
            self._sent.append(content)
        for connection in self._callers if self._game is None else [self._game]:
            connection.send(content)

    async def close(self) -> None:
        """See `Transport`."""
        for connection in (*self._callers, *([self._game] if self._game is not None else [])):
            connection.close()
        if self._server is not None:
            self._server.close()

    def _protocol_factory(self) -> Callable[[], asyncio.BaseProtocol]:
        return lambda: _Connection(self)

    def on_connect(self, connection: _Connection) -> None:
        """Accept a connection, or close it if a different one is known to be the game's."""
        if self._game is not None:
            self._warn_of_second()
            connection.close()
            return
        if len(self._callers) >= _CALLERS:  # drop the oldest connection: a game sends data soon
            self._callers.pop(0).close()
        self._callers.append(connection)
        self._connected.set()
        for content in self._sent:
            connection.send(content)

    def on_bytes(self, connection: _Connection) -> None:
        """Handle the bytes in a connection's buffer. The first connection to send any belongs to the game."""
        if self._game is None:
            self._game, others = connection, [caller for caller in self._callers if caller is not connection]
            self._callers, self._sent = [], []
            if others:
                self._warn_of_second()
            for caller in others:
                caller.close()
        while (content := self._next_message(connection)) is not None:
            if not self._take(content):
                connection.close()

    def _next_message(self, connection: _Connection) -> bytes | None:
        """Remove a message from the buffer and return it; None if it is incomplete or above the limit."""
        buffer = connection.buffer
        if len(buffer) < HEADER.size:
            return None
        (size,) = HEADER.unpack_from(buffer)
        if size > self._max_bytes:
            self.interrupt(TooLarge(size, bytes(buffer[: HEADER.size])))
            connection.close()
            return None
        end = HEADER.size + size
        if len(buffer) < end:
            return None
        content = bytes(memoryview(buffer)[HEADER.size : end])
        del buffer[:end]
        return content

    def on_end(self, connection: _Connection) -> None:
        """Handle the end of a connection."""
        if connection in self._callers:
            self._callers.remove(connection)
        if connection is self._game or (self._game is None and not self._callers):
            self.interrupt(ConnectionClosed(bool(connection.buffer)))


class _Connection(asyncio.Protocol):
    """A connection from a game, or from another program.

    Attributes:
        buffer: the bytes that have arrived and are not part of a whole message.
    """

    def __init__(self, owner: TcpTransport) -> None:
        self.buffer = bytearray()
        self._owner = owner
        self._transport: asyncio.Transport | None = None

    @property
    def arrived(self) -> tuple[int, int] | None:
        """See `Transport.arrived`."""
        if len(self.buffer) < HEADER.size:
            return None
        return len(self.buffer) - HEADER.size, HEADER.unpack_from(self.buffer)[0]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Report the connection. Called by asyncio, which has set TCP_NODELAY."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._owner.on_connect(self)

    def data_received(self, data: bytes) -> None:
        """Report the bytes that have arrived. Called by asyncio."""
        self.buffer += data
        self._owner.on_bytes(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end. Called by asyncio."""
        self._owner.on_end(self)

    def send(self, content: bytes) -> None:
        """Send a message."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(framed(content))

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

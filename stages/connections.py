"""Connections to Headrace's HTTP servers: limits on their number and on how long an idle connection stays open.

aiohttp's handler waits indefinitely for a request, and for the caller to read the answer. So a `_Seat` stands in front
of each handler: it passes on all events, and closes a connection that occupies a slot without using it.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from headrace.stages.admission import Admission

if sys.platform != "win32":
    import resource

HEADER_S = 5.0
"""Seconds within which a request's header must arrive.

They count from the connection, or from the request's first byte.
"""
READ_S = 30.0
"""Seconds within which a caller must read `READ_BYTES` of a pending answer."""
READ_BYTES = 32 * 1024
"""Bytes that the caller must read within `READ_S`, unless the entire answer is smaller."""
REFUSED_S = 0.1
"""Delay in seconds before an excess request is refused. Callers retry immediately, and refusing them immediately would
take time from answering other requests."""
RESERVE = 64
"""Number of additional slots for requests that the server answers even when all other slots are taken."""


def _refusal(message: str, more: str = "") -> bytes:
    body = f'{{"error": "{message}; try again later"}}'
    head = f"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n{more}Content-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


_NO_PLACE = _refusal("all connections are in use", "Connection: close\r\n")
_NO_ROOM = _refusal("too many requests are waiting")


def allow_open_files(wanted: int) -> None:
    """Raise this process's limit on open files to `wanted`, as far as the system permits."""
    if sys.platform != "win32":
        limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if resource.RLIM_INFINITY != limit < wanted:
            with suppress(ValueError, OSError):  # macOS has an additional limit
                resource.setrlimit(
                    resource.RLIMIT_NOFILE, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most)
                )


def within_open_files(wanted: int) -> int:
    """Return `wanted`, capped at a third of the number of files that this process may open."""
    if sys.platform == "win32":
        return wanted
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if limit == resource.RLIM_INFINITY else min(wanted, limit // 3)


@dataclass(frozen=True)
class Places:
    """Limits on concurrent connections and requests."""

    most: int
    """Maximum number of connections in total."""
    most_of_one: int
    """Maximum number of connections from one address (for IPv6, from one network)."""
    admission: Admission | None = None
    """Limits the requests with a body that arrive in one piece; None to admit all of them."""


class Connections:
    """All of a server's connections.

    A connection needs a slot only while a request is being answered. If all slots are taken, or all slots for one
    address, a new connection replaces the one that has been idle longest. If none is idle, the new connection gets a
    reserve slot, in which only some requests are answered. If no reserve slot is free either, it gets a 503 response
    and is closed.

    Excess requests get a 503 before they are processed, because refusing them later would take as long as answering
    them.

    Args:
        places: the limits.
        make: makes a connection's handler.
        refused: called for each request and connection that is refused without being read.
    """

    def __init__(
        self, places: Places, make: Callable[[], asyncio.Protocol], refused: Callable[[], object] = lambda: None
    ) -> None:
        self._places = places
        self.refused = refused
        self._make = make
        self._by_handler: dict[asyncio.Protocol, _Seat] = {}
        """Seats by handler, ordered by when each was opened or last finished a request."""
        self._turned_away: set[asyncio.Transport] = set()
        self.admission = places.admission or Admission(math.inf, time.monotonic)

    def __call__(self) -> asyncio.Protocol:
        """Return the protocol that asyncio uses for a new connection."""
        return _Seat(self, self._make())

    @contextmanager
    def answering(self, handler: Any) -> Iterator[bool]:
        """Reserve a connection's slot while a request is being answered.

        Args:
            handler: the connection's handler, made by `make`.

        Yields:
            True if the connection has a reserve slot.
        """
        connection = self._by_handler.get(handler)
        if connection is None:  # the connection was lost before its request was read
            yield False
            return
        connection.begin()
        try:
            yield connection.reserved
        finally:
            connection.end()
            if self._by_handler.pop(handler, None) is not None:
                self._by_handler[handler] = connection

    def admit(self, connection: _Seat) -> bool:
        """Give a new connection a slot; return False if none is free."""
        taken = [each for each in self._by_handler.values() if not each.reserved]
        own = [each for each in taken if each.address == connection.address]
        full = own if len(own) >= self._places.most_of_one else taken if len(taken) >= self._places.most else []
        if full and not _makes_room(full):
            connection.reserved = True
            reserved = [each for each in self._by_handler.values() if each.reserved]
            if len(reserved) >= RESERVE and not _makes_room(reserved):
                return False
        self._by_handler[connection.handler] = connection
        return True

    def turn_away(self, transport: asyncio.Transport) -> None:
        """Refuse a connection. It is closed after a delay, because callers reconnect immediately."""
        late = len(self._turned_away) < self._places.most  # each refused connection uses a file descriptor until then

        def close() -> None:
            self._turned_away.discard(transport)
            transport.write(_NO_PLACE)
            transport.close()

        self.refused()
        self._turned_away.add(transport)
        asyncio.get_running_loop().call_later(REFUSED_S if late else 0.0, close)

    def close(self) -> None:
        """Close the connections whose refusal is pending; handlers close all others."""
        for transport in self._turned_away:
            transport.abort()

    def forget(self, connection: _Seat) -> None:
        """Remove a connection that was lost."""
        self._by_handler.pop(connection.handler, None)


def _makes_room(connections: list[_Seat]) -> bool:
    for each in connections:
        if each.idle:
            each.drop()
            return True
    return False


class _Seat(asyncio.Protocol):
    """One connection, between asyncio and aiohttp's handler.

    Args:
        connections: all connections.
        handler: receives all events.

    Attributes:
        address: the peer's address.
        reserved: True if the connection has a reserve slot.
    """

    def __init__(self, connections: Connections, handler: asyncio.Protocol) -> None:
        self.handler = handler
        self.address = ""
        self.reserved = False
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._requests = 0
        self._in_parts = False
        """True while part of a request has arrived and its handler has not started."""
        self._pipelines = False
        self._admitted: float | None = None
        """Time at which a request that came in one piece was admitted; None once it is answered."""
        self._late: asyncio.TimerHandle | None = None
        self._waits_since: float | None = None
        """Time at which the connection began to wait for a request, for the timer `_late`; None while a request is
        being answered."""
        self._slow: asyncio.TimerHandle | None = None
        self._refusal: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """True while the connection has no request in progress and no unread answer."""
        return not (self._requests or self._admitted is not None or self._slow or self._refusal)

    def begin(self) -> None:
        """Record that a request is now being answered."""
        self._requests += 1
        self._waits_since, self._in_parts = None, False

    def end(self) -> None:
        """Record that a request has been answered, although the caller may still be reading the answer."""
        self._requests -= 1
        self._release()

    def _release(self) -> None:
        if self._admitted is not None:
            self._connections.admission.end(self._admitted)
            self._admitted = None

    def drop(self) -> None:
        """Close the connection immediately, to free its slot."""
        self._connections.forget(self)
        if self._transport is not None and self.reserved:
            self._transport.write(_NO_PLACE)
            self._transport.close()
        elif self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a slot, and wait for the first request."""
        assert isinstance(transport, asyncio.Transport)
        self.address = _network(transport.get_extra_info("peername"))
        if not self._connections.admit(self):
            self._connections.turn_away(transport)
            return
        self._transport = transport
        self.handler.connection_made(transport)
        self._await_header()

    def data_received(self, data: bytes) -> None:
        """Pass on data. If the data start a request and too many requests are in progress, refuse the request."""
        if self._transport is None:  # the connection has no slot
            return
        if self._requests:
            self._pipelines = True  # answers must stay in order, and a refusal here would come too early
        elif not self._in_parts:
            if not self._pipelines and _is_whole(data):
                if self._connections.admission.full and not self.reserved:
                    self._refuse()
                    return
                self._admitted = self._connections.admission.begin()
            self._in_parts = True
        if not self._requests and self._waits_since is None:
            self._await_header()
        self.handler.data_received(data)

    def _refuse(self) -> None:
        assert self._transport is not None, "a request of it is there"
        self._connections.refused()
        self._waits_since = None
        self._transport.pause_reading()
        self._refusal = self._loop.call_later(REFUSED_S, self._tell_refusal)

    def _tell_refusal(self) -> None:
        self._refusal = None
        if self._transport is not None:
            self._transport.write(_NO_ROOM)
            self._transport.resume_reading()

    def eof_received(self) -> bool | None:
        """Pass on the end of input."""
        return self.handler.eof_received()

    def pause_writing(self) -> None:
        """Pass on the pause to the handler, which must not send more until the caller has read."""
        self.handler.pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        """Pass on that the caller has read enough for the handler to continue."""
        _stop(self._slow)
        self._slow = None
        self.handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Free the connection's slot, and pass on the event."""
        _stop(self._late)
        _stop(self._slow)
        _stop(self._refusal)
        self._connections.forget(self)
        if not self._requests:
            self._release()
        if self._transport is not None:
            self._transport = None
            self.handler.connection_lost(exc)

    def _await_header(self) -> None:
        self._waits_since = self._loop.time()
        if self._late is None:  # an existing timer is reused, because most requests come in time
            self._late = self._loop.call_later(HEADER_S, self._check_header)

    def _check_header(self) -> None:
        self._late = None
        if self._waits_since is not None:
            left = self._waits_since + HEADER_S - self._loop.time()
            if left <= 0:
                self.drop()
            else:
                self._late = self._loop.call_later(left, self._check_header)

    def _await_reader(self, before: float = math.inf) -> None:
        assert self._transport is not None, "something is written to it"
        waiting = self._transport.get_write_buffer_size()
        if waiting > before - READ_BYTES:
            self.drop()
        else:
            self._slow = self._loop.call_later(READ_S, self._await_reader, waiting)


def _is_whole(data: bytes) -> bool:
    """Return True only if `data` is exactly one complete request, on a connection that stays open."""
    head, _, body = data.partition(b"\r\n\r\n")
    head = head.lower()
    parts = head.split(b"\r\ncontent-length:")
    if len(parts) != 2 or not head.startswith(b"post ") or any(each in head for each in _OTHERWISE):
        return False
    length = parts[1].partition(b"\r\n")[0].strip()
    return length.isdigit() and len(length) < 10 and int(length) == len(body)


_OTHERWISE = (b"\r\ntransfer-encoding", b"\r\nexpect", b"\r\nupgrade", b"\r\nconnection: close", b" http/1.0")
"""Parts of a header that show that the request does not end after its stated length, or that the connection closes
after the answer."""


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _network(peer: Any) -> str:
    """Return a peer's IPv4 address or IPv6 network. A caller usually controls all addresses of an IPv6 network."""
    try:
        address = ip_address(peer[0].partition("%")[0])
    except (TypeError, LookupError, ValueError):
        return ""
    return str(address) if address.version == 4 else str(int(address) >> 64)

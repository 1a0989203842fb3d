"""Bounds a server's connections: in total, and from one address."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

if sys.platform != "win32":
    import resource

_BODY = b'{"error": "all connections are in use; try again later"}'
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)


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


@dataclass
class _Group:
    """The connections of one address, or all connections."""

    most: int
    count: int = 0
    idle: OrderedDict[Connection, None] = field(default_factory=OrderedDict)
    """Connections without a request in progress, the longest idle first. A plain dict would search for its first."""


class Connections:
    """A server's open connections, at most half of them from one address.

    A connection beyond the limit replaces the connection that has been idle longest. If none is idle, the new
    connection gets a 503 response and is closed. The work for a connection does not depend on the number of others.

    Args:
        most: maximum number of connections.
    """

    def __init__(self, most: int) -> None:
        self._all = _Group(most)
        self._by_address: dict[str, _Group] = {}

    def admit(self, connection: Connection) -> bool:
        """Count a new connection; return False if there is no room for it."""
        own = self._by_address.get(connection.address) or _Group(max(1, self._all.most // 2))
        for group in (own, self._all):
            if group.count >= group.most:
                if not group.idle:
                    return False
                next(iter(group.idle)).drop()
        self._by_address[connection.address] = own
        connection.groups = (own, self._all)
        for group in connection.groups:
            group.count += 1
            group.idle[connection] = None
        return True

    def forget(self, connection: Connection) -> None:
        """Stop counting a connection."""
        for group in connection.groups:
            group.count -= 1
            group.idle.pop(connection, None)
        if connection.groups and not connection.groups[0].count:
            del self._by_address[connection.address]
        connection.groups = ()


class Connection(web.RequestHandler):
    """aiohttp's handler of a connection, which counts among a server's connections.

    Args:
        connections: the server's connections.
        manager: the server.
        options: see `aiohttp.web.RequestHandler`.
    """

    __slots__ = ("_connections", "address", "groups")

    def __init__(self, connections: Connections, manager: web.Server, **options: Any) -> None:
        super().__init__(manager, **options)
        self._connections = connections
        self.address = ""
        self.groups: tuple[_Group, ...] = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to read requests, or refuse the connection. Called by asyncio."""
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self.address = peer[0] if peer else ""
        if self.transport is not None and not self._connections.admit(self):
            self.transport.write(_REFUSAL)
            self.transport.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Make room for others. Called by asyncio."""
        self._connections.forget(self)
        super().connection_lost(exc)

    def drop(self) -> None:
        """Close the connection immediately."""
        self._connections.forget(self)
        if self.transport is not None:
            self.transport.abort()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Count as in use while a request is being answered."""
        for group in self.groups:
            group.idle.pop(self, None)
        try:
            yield
        finally:
            for group in self.groups:
                group.idle[self] = None

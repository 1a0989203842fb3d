"""The WebSocket server that one game calls, a page in a browser mostly."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any
from urllib.parse import urlsplit

from aiohttp import WebSocketError, WSMsgType, web

from headrace.config.listen import LOCALHOST
from headrace.stages.environments.open_protocol.messages import format_of
from headrace.stages.environments.programs.server import (
    ADDRESS,
    ConnectionClosed,
    TooLarge,
    refused_port,
    warn_of_second,
)

log = logging.getLogger(__name__)

_CLOSE_S = 1.0
_LOCAL = ("localhost", "127.0.0.1", "::1")
_TOO_BIG = 1009
"""The code with which a connection is closed whose message is above the limit."""


class WebSocketServer:
    """A `GameServer` of WebSockets: JSON in text frames, msgpack in binary ones.

    Pages of other sites can't call it: a browser tells where a page comes from, and only this machine's own, or files,
    are let in.

    Args:
        port: 0 for any that is free.
        max_bytes: the largest message.

    Attributes:
        port: the real one after `start`.
    """

    def __init__(self, port: int, max_bytes: int) -> None:
        self.port = port
        self._max_bytes = max_bytes
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._taken = False
        self._connected = asyncio.Event()
        self._arrived: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self._leaving: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._ending: asyncio.Task[None] | None = None

    @property
    def unasked(self) -> bool:
        """True if something has arrived that nobody has received yet."""
        return bool(self._arrived)

    async def start(self, name: str, cure: str) -> None:
        """Listen; as `GameServer.start`."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_CLOSE_S)
        await self._runner.setup()
        assert self._runner.server is not None, "set up"
        try:
            self._server = await asyncio.get_running_loop().create_server(self._runner.server, ADDRESS, self.port)
        except OSError as error:
            await self._runner.cleanup()
            self._runner = None
            raise refused_port(name, self.port, error, cure) from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def connected(self) -> None:
        """Wait until a game is connected."""
        await self._connected.wait()

    @property
    def arrived(self) -> tuple[int, int] | None:
        """None: of a frame that is not whole nothing is known."""
        return None

    def send(self, content: bytes) -> None:
        """Send a message; nothing happens if the game is gone, which `receive` tells."""
        self._leaving.put_nowait(content)

    async def receive(self) -> bytes:
        """Wait for the game's message; as `GameServer.receive`."""
        while not self._arrived:
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()
        return self._arrived.popleft()

    def interrupt(self, error: Exception) -> None:
        """Let `receive` raise an error, now or at its next call."""
        if self._error is None:
            self._error = error
        self._changed.set()

    def close(self) -> None:
        """Close the connection and stop listening; closing twice is allowed."""
        self._leaving.put_nowait(None)
        if self._server is not None:
            self._server.close()  # at once: the next start listens at the same port
        if self._runner is not None and self._ending is None:
            self._ending = asyncio.ensure_future(self._runner.cleanup())

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        origin = request.headers.get("Origin", "null")
        if origin != "null" and urlsplit(origin).hostname not in _LOCAL:
            log.warning("A page of %s calls port %d, and is turned away: only %s's may.", origin, self.port, LOCALHOST)
            raise web.HTTPForbidden(text=f"pages of {origin} may not call this port")
        if self._taken:
            warn_of_second(self.port)
            raise web.HTTPConflict(text="a game is connected to this port already")
        self._taken = True
        socket = web.WebSocketResponse(max_msg_size=self._max_bytes, timeout=_CLOSE_S, compress=False)
        await socket.prepare(request)
        self._connected.set()
        sender = asyncio.ensure_future(self._send_all(socket))
        try:
            await self._read_all(socket)
        finally:
            self.interrupt(ConnectionClosed())
            sender.cancel()
        return socket

    async def _read_all(self, socket: web.WebSocketResponse) -> None:
        async for frame in socket:
            if frame.type is WSMsgType.TEXT:
                self._arrived.append(frame.data.encode())
            elif frame.type is WSMsgType.BINARY:
                self._arrived.append(frame.data)
            else:
                if isinstance(frame.data, WebSocketError) and frame.data.code == _TOO_BIG:
                    self.interrupt(TooLarge(self._max_bytes + 1))
                break
            self._changed.set()
            if sum(map(len, self._arrived)) > self._max_bytes:  # message upon message that nobody has asked for
                self.interrupt(TooLarge(sum(map(len, self._arrived))))
                break

    async def _send_all(self, socket: Any) -> None:
        while (content := await self._leaving.get()) is not None:
            try:
                if format_of(content) == "json":
                    await socket.send_str(content.decode())
                else:
                    await socket.send_bytes(content)
            except ConnectionError:
                return  # reading tells it
        await socket.close()

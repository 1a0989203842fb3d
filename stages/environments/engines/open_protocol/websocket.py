"""The transport for WebSockets: JSON in text frames, msgpack in binary frames."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from aiohttp import WebSocketError, WSMsgType, web

from headrace.config.listen import LOCALHOST
from headrace.stages.environments.engines.open_protocol.messages import format_of
from headrace.stages.environments.engines.transport import ConnectionClosed, SocketTransport, TooLarge

log = logging.getLogger(__name__)

_CLOSE_S = 1.0
_LOCAL = ("localhost", "127.0.0.1", "::1")
_TOO_BIG = 1009
"""WebSocket close code for a message above the size limit."""


class WebSocketTransport(SocketTransport):
    """A transport for WebSockets.

    Pages from other sites can't connect: a browser sends the page's origin, and the server accepts only this machine's
    own pages and files.
    """

    def __init__(self, port: int, max_bytes: int) -> None:
        super().__init__(port, max_bytes)
        self._runner: web.AppRunner | None = None
        self._taken = False
        self._leaving: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def start(self, name: str, cure: str) -> None:
        """See `Transport`."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_CLOSE_S)
        await self._runner.setup()
        await super().start(name, cure)

    def send(self, content: bytes) -> None:
        """See `Transport`."""
        self._leaving.put_nowait(content)

    async def close(self) -> None:
        """See `Transport`."""
        self._leaving.put_nowait(None)
        if self._server is not None:
            self._server.close()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def _protocol_factory(self) -> Callable[[], asyncio.BaseProtocol]:
        assert self._runner is not None, "set up"
        assert self._runner.server is not None, "set up"
        return self._runner.server

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        origin = request.headers.get("Origin", "null")
        if origin != "null" and urlsplit(origin).hostname not in _LOCAL:
            log.warning(
                "Rejected a connection from a page of %s to port %d: only pages of %s are allowed.",
                origin,
                self.port,
                LOCALHOST,
            )
            raise web.HTTPForbidden(text=f"pages from {origin} are not allowed to connect to this port")
        if self._taken:
            self._warn_of_second()
            raise web.HTTPConflict(text="a game is already connected to this port")
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
            if frame.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                if isinstance(frame.data, WebSocketError) and frame.data.code == _TOO_BIG:
                    self.interrupt(TooLarge())
                break
            if not self._take(frame.data.encode() if frame.type is WSMsgType.TEXT else frame.data):
                break

    async def _send_all(self, socket: Any) -> None:
        while (content := await self._leaving.get()) is not None:
            try:
                if format_of(content) == "json":
                    await socket.send_str(content.decode())
                else:
                    await socket.send_bytes(content)
            except ConnectionError:
                return  # `receive` reports the loss
        await socket.close()

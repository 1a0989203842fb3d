"""One game that speaks the open protocol: the order of its messages.

`programs/worker.py` handles failures of the program; `columns` converts the content of messages.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import WebSocketError, WSMsgType, web

from headrace.config.listen import LOCALHOST
from headrace.stages.environments.open_protocol.messages import (
    VERSION,
    Format,
    Hello,
    decode,
    encode,
    format_of,
    read_hello,
)
from headrace.stages.environments.programs.errors import MessageError, ProgramBroken, ProgramEnded, ProgramRefused
from headrace.stages.environments.programs.process import Launch, find_executable
from headrace.stages.environments.programs.server import ConnectionClosed, GameServer, TcpServer, TooLarge
from headrace.stages.environments.programs.worker import GameWorker, Wording, WorkerSettings
from headrace.surroundings import surroundings

log = logging.getLogger(__name__)


_CLOSE_S = 1.0
_LOCAL = ("localhost", "127.0.0.1", "::1")
_TOO_BIG = 1009
"""WebSocket close code for a message above the size limit."""


class WebSocketServer(GameServer):
    """A `GameServer` for WebSockets: JSON in text frames, msgpack in binary frames.

    Pages from other sites can't connect: a browser sends the page's origin, and the server accepts only this machine's
    own pages and files.
    """

    def __init__(self, port: int, max_bytes: int) -> None:
        super().__init__(port, max_bytes)
        self._runner: web.AppRunner | None = None
        self._taken = False
        self._arrived: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self._leaving: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._ending: asyncio.Task[None] | None = None

    @property
    def unasked(self) -> bool:
        """See `GameServer`."""
        return bool(self._arrived)

    @property
    def arrived(self) -> tuple[int, int] | None:
        """Return None: the size of an incomplete frame is unknown."""
        return None

    async def start(self, name: str, cure: str) -> None:
        """See `GameServer`."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_CLOSE_S)
        await self._runner.setup()
        try:
            await super().start(name, cure)
        except ProgramRefused:
            await self._runner.cleanup()
            self._runner = None
            raise

    def send(self, content: bytes) -> None:
        """See `GameServer`."""
        self._leaving.put_nowait(content)

    async def receive(self) -> bytes:
        """See `GameServer`."""
        while not self._arrived:
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()
        return self._arrived.popleft()

    def interrupt(self, error: Exception) -> None:
        """See `GameServer`."""
        if self._error is None:
            self._error = error
        self._changed.set()

    def close(self) -> None:
        """See `GameServer`."""
        self._leaving.put_nowait(None)
        if self._server is not None:
            self._server.close()  # immediately: the next start listens on the same port
        if self._runner is not None and self._ending is None:
            self._ending = asyncio.ensure_future(self._runner.cleanup())

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
            if frame.type is WSMsgType.TEXT:
                self._arrived.append(frame.data.encode())
            elif frame.type is WSMsgType.BINARY:
                self._arrived.append(frame.data)
            else:
                if isinstance(frame.data, WebSocketError) and frame.data.code == _TOO_BIG:
                    self.interrupt(TooLarge(self._max_bytes + 1))
                break
            self._changed.set()
            if sum(map(len, self._arrived)) > self._max_bytes:  # a flood of unrequested messages
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
                return  # `receive` reports the loss
        await socket.close()


TRAINER = "headrace"
_TO_READ_S = 1.0
"""Seconds to wait for a game to read the error about its message, before the game is killed."""
_SEED = 0x7FFFFFFF
_WORDING = Wording(
    program="Game",
    unstarted="the game",
    invitation="Start the game, which must connect to this port.",
    next_start="its next start",
    needs="does it connect and send a hello",
    argument="--trainer=tcp://… or ws://…",
    late="Start it and let it connect to that port; docs/protocol.md describes the messages that it must send",
    stranger="Is the program on this port really a game?",
    paused="or an error in its code prevents an answer",
    taken_port="End that program, most likely another training run, or choose another port with --base-port",
)


@dataclass(frozen=True, slots=True)
class GameProgram(Launch):
    """The command that starts a game: the game itself, or a system command such as `node`, with its arguments."""

    scheme: str = "tcp"
    """The transport that the game uses: `tcp` or `ws`."""

    def command(self, port: int, seed: int) -> list[str]:
        """Return the program, the user's arguments, the address and the seed. Raises the same errors as `Launch`."""
        try:
            found = str(find_executable(Path(self.path), "game"))
        except ProgramRefused:
            of_system = shutil.which(self.path, path=surroundings().variables.get("PATH"))
            if of_system is None:
                raise
            found = of_system
        return [found, *self.arguments, f"--trainer={self.scheme}://127.0.0.1:{port}", f"--seed={seed & _SEED}"]


def make_server(transport: str, port: int, max_message_mib: int) -> GameServer:
    """Make the server of a transport, `tcp` or `websocket`."""
    if transport == "tcp":
        return TcpServer(port, max_message_mib * 2**20)
    from headrace.stages.environments.open_protocol.worker import (
        WebSocketServer,  # imports aiohttp, which plain TCP does not need
    )

    return WebSocketServer(port, max_message_mib * 2**20)


class OpenWorker(GameWorker):
    """One game: a program that the worker starts, or one that the user starts.

    The order of calls is `start`, `reset`, then `step`; each waits for the game's state for at most `timeout_s`.

    Args:
        settings: the worker's settings. Port 0 is allowed only if a program is given.
        transport: `tcp` or `websocket`.
        program: the program to start; None if the user starts it.
    """

    def __init__(self, settings: WorkerSettings, transport: str, program: GameProgram | None) -> None:
        server = make_server(transport, settings.port, settings.max_message_mib)
        if program is not None and transport != "tcp":
            program = replace(program, scheme="ws")
        super().__init__(settings, server, program, _WORDING)
        self._form: Format = "json"
        self._asked = 0
        """Number of the last `reset` or `act` message."""

    def read(self, content: bytes) -> dict[str, Any]:
        """Read a message, and use its format for the next messages to the game."""
        self._form = format_of(content)
        return decode(content)

    def check(self, message: dict[str, Any], kind: str) -> None:
        """Check a message's kind and number.

        Instead of the requested message, a game may report its end or an error.
        """
        if message["type"] == "close":
            raise ProgramEnded(f"{self.name} has ended: {message.get('reason') or 'it gave no reason'}")
        if message["type"] == "error":
            raise MessageError(f"has failed: {message.get('message') or 'it gave no reason'}")
        super().check(message, kind)
        number = message.get("number")
        if kind == "state" and (isinstance(number, bool) or number != self._asked):
            what = "without a number" if number is None else f"with the number {repr(number)[:60]}"
            raise MessageError(
                f"sent a state {what}; expected {self._asked}, the number of the last reset or act: answer each "
                "request once, and in order"
            )

    def say_goodbye(self) -> None:
        """Send the message that ends the session."""
        self._server.send(encode({"type": "close"}, self._form))

    async def start(self) -> Hello:
        """Listen, start the program or wait for the game, and receive its announcement.

        Releases all resources after a failure or cancellation.

        Raises:
            ProgramRefused: if the port is in use, the program does not exist, or the game's announcement is invalid.
            ProgramBroken: if the game exits, or does not announce itself in time.
            ProgramEnded: if the game closes normally.
        """
        try:
            await self._connected()
            message = await self._answer("hello", "has connected, but has not sent a hello")
            try:
                hello = read_hello(message)
            except MessageError as error:  # a restart would get the same announcement
                raise ProgramRefused(str(await self._failed(str(error)))) from None
        except BaseException:
            await self._release()
            raise
        self._server.send(encode({"type": "welcome", "protocol": VERSION, "trainer": TRAINER}, self._form))
        self._announced = True
        log.info("Connected to %s: %s, with %s.", self.name, hello.game, ", ".join(hello.specs))
        return hello

    async def reset(self, parameters: Mapping[str, float], seed: int | None = None) -> dict[str, Any]:
        """Reset all agents; return the game's state. Raises the same errors as `step`.

        Args:
            parameters: all environment parameters.
            seed: seeds the game's random numbers; None to continue the random sequence.
        """
        request = self._request("reset", parameters=dict(parameters))
        if seed is not None:
            request["seed"] = seed
        return await self._ask(encode(request, self._form), "state", "has not answered a reset request")

    async def step(self, actions: Mapping[str, Any], parameters: Mapping[str, float] | None = None) -> dict[str, Any]:
        """Let agents act, and wait for the next state.

        Args:
            actions: the results of `columns.actions_part`, keyed by behaviour id.
            parameters: all environment parameters; None if they have not changed.

        Raises:
            ProgramBroken: if the game died, did not answer, dropped the connection, or broke the protocol.
            ProgramEnded: if the game has closed normally.
        """
        request = self._request("act", actions=actions)
        if parameters is not None:
            request["parameters"] = dict(parameters)
        return await self._ask(encode(request, self._form), "state", "hasn't sent its next state")

    def _request(self, kind: str, **content: Any) -> dict[str, Any]:
        self._asked += 1
        return {"type": kind, "number": self._asked, **content}

    async def refuse(self, what: str) -> ProgramBroken:
        """Report an invalid message to the game, and end the game; return the error, which names the game."""
        return await self._failed(what)

    async def _failed(self, what: str) -> ProgramBroken:
        if not self._owes:  # a late game is busy, and has sent nothing invalid
            self._server.send(encode({"type": "error", "message": what}, self._form))
            if self._process is not None:
                await self._process.exited(_TO_READ_S)
        return await super()._failed(what)

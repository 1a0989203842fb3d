"""One game that speaks the open protocol: the order of its messages.

`programs/worker.py` handles failures of the program; `columns` converts the content of messages.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
from headrace.stages.environments.programs.server import GameServer, TcpServer
from headrace.stages.environments.programs.worker import GameWorker, Wording, WorkerSettings
from headrace.surroundings import surroundings

log = logging.getLogger(__name__)

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
    from headrace.stages.environments.open_protocol.websocket import (
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

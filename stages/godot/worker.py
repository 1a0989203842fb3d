"""One game made with Godot: its start, the exchange of messages, and its end.

This module handles the order of messages and all that can go wrong with the program; `stages.godot.columns` converts
what the messages hold.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from stages.godot.build import GodotBuild, command_line, log_of
from stages.godot.connection import ConnectionClosed, GodotServer, TooLarge
from stages.godot.spaces import Announcement, BadAnnouncement, read_announcement
from stages.godot.wire import CLOSE, ENV_INFO, HANDSHAKE, RESET, WireError, call_of, read_message
from stages.programs.errors import ProgramBroken, ProgramEnded
from stages.programs.logs import tail
from stages.programs.process import ProgramProcess, describe_exit

log = logging.getLogger(__name__)

DEFAULT_PORT = 11008
"""The port that the addon calls without a `--port`, the editor's."""
_LAST_WORDS_S = 2.0
"""Time from the end of a connection to the end of its process."""
_KILL_S = 10.0
"""Time for the system to end a killed process."""
_SYNC_NODE = "a Sync node with Control Mode 'Training'"


class GodotWorker:
    """One game: a build that the worker starts, or the editor, whose user presses Play.

    The order of calls is `start`, `reset`, then `step`, and `call` between them; each waits for the game's answer, at
    most `timeout_s`. After a `ProgramBroken`, a `ProgramEnded` or a cancelled call only `close` may be called.

    Args:
        worker_id: number of the game in the run, from 0.
        port: the port that it calls; 0 for any that is free, for builds alone.
        build: what to start; None for the editor.
        seed: for the game's random numbers.
        timeout_s: for the start, and for each exchange.
        max_message_mib: largest message.
        patient: True to wait for the editor's next Play for as long as it takes.
    """

    def __init__(
        self,
        worker_id: int,
        port: int,
        build: GodotBuild | None,
        seed: int,
        timeout_s: float,
        max_message_mib: int,
        patient: bool = False,
    ) -> None:
        self.worker_id = worker_id
        self._build = build
        self._seed = seed
        self._timeout_s = timeout_s
        self._max_message_mib = max_message_mib
        self._patient = patient and build is None
        self._server = GodotServer(port, max_message_mib * 2**20)
        self._process: ProgramProcess | None = None
        self._died = asyncio.Event()
        self._announced = False
        self._over = False

    @property
    def name(self) -> str:
        """Its name in log messages and errors."""
        if self._build is None:
            return f"Godot's editor (port {self._server.port})"
        return f"Godot worker {self.worker_id} ({self._build.path.name}, port {self._server.port})"

    @property
    def pid(self) -> int | None:
        """The build's process id, also after its end; None for the editor, and before `start`."""
        return None if self._process is None else self._process.pid

    async def start(self) -> Announcement:
        """Listen, start the build or wait for the editor, and ask what there is.

        After a failure or cancellation everything is released.

        Raises:
            ProgramRefused: if the port is in use, or there is no such build.
            ProgramBroken: if it ends or is silent before it has told what it is.
            ProgramEnded: if it closes in order.
        """
        try:
            await self._server.start(self.name, self._cure_for_port())
            await self._launch()
            await self._connect()
            self._server.send(HANDSHAKE)
            message = await self._ask(ENV_INFO, "env_info", "has connected, but says nothing of its agents")
            try:
                announcement = read_announcement(message)
            except BadAnnouncement as error:
                raise self._broken(str(error)) from None
        except BaseException:
            await self._release()
            raise
        self._announced = True
        log.info("Connected to %s: %d agents.", self.name, len(announcement.agents))
        return announcement

    async def reset(self) -> dict[str, Any]:
        """Ask for a reset of all agents; returns the answer. Raises as `step`."""
        return await self._ask(RESET, "reset", "has not answered a reset")

    async def step(self, message: bytes) -> dict[str, Any]:
        """Let the agents act, by a message of `columns.action_message`; returns the answer.

        Raises:
            ProgramBroken: if it died, did not answer, dropped the connection, or broke the protocol.
            ProgramEnded: if it has closed in order.
        """
        return await self._ask(message, "step", "hasn't finished its step")

    async def call(self, method: str) -> list[Any]:
        """Call a method of all agents; returns what each returned. Raises as `step`."""
        message = await self._ask(call_of(method), "call", f"has not answered the call of {method!r}")
        returned = message.get("returns")
        return returned if isinstance(returned, list) else []

    async def close(self, patience_s: float | None = None) -> None:
        """End the game: a build quits, and is killed if it takes too long; the editor's scene stops.

        Args:
            patience_s: time that the build may take to end; None for `timeout_s`.
        """
        self._server.send(CLOSE)
        if self._process is not None and self._announced and not self._over:
            patience_s = self._timeout_s if patience_s is None else patience_s
            if not await self._process.exited(patience_s):
                log.warning("%s didn't end within %g s of being asked, and is killed", self.name, patience_s)
        await self._release()

    async def _launch(self) -> None:
        if self._build is None:
            log.info(
                "Listening on port %d. Start training by pressing Play in Godot's editor, in a scene with %s.",
                *(self._server.port, _SYNC_NODE),
            )
            return
        command = command_line(self._build, self._server.port, self._seed)
        self._process = await ProgramProcess.launch(
            command, self._build.show_output, self._on_exit, log_of(self._build, self.worker_id)
        )

    async def _connect(self) -> None:
        connected = asyncio.ensure_future(self._server.connected())
        died = asyncio.ensure_future(self._died.wait())
        done: set[Any] = set()
        try:
            while not done:
                done, _ = await asyncio.wait(
                    (connected, died), timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED
                )
                if not self._patient:
                    break
                if not done:
                    log.info("%s still waits for the next Play; Ctrl-C ends the run, with a checkpoint.", self.name)
        finally:
            connected.cancel()
            died.cancel()
        if connected in done:
            return
        if died in done:
            raise self._death()
        if self._build is None:
            raise self._broken(
                f"hasn't connected within {self._timeout_s:g} s. Press Play, in a scene with {_SYNC_NODE}; a game that "
                "plays already has to be started again, since it tries to connect once, a second after its start"
            )
        raise self._broken(
            f"hasn't connected within {self._timeout_s:g} s. It runs: has its main scene {_SYNC_NODE}, and does it "
            "take the port from its arguments (--port)? If it only needs longer, raise --timeout-wait "
            "(env_settings.timeout_wait)"
        )

    async def _ask(self, content: bytes, kind: str, late: str) -> dict[str, Any]:
        """Send a request, and return the answer, a message of this kind."""
        if self._over:
            raise ProgramBroken(f"{self.name} isn't connected: it has failed, or was never started")
        if self._server.unasked:
            raise await self._failed("has sent a message that answers nothing")
        self._server.send(content)
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._server.receive()
            message = read_message(answer)
        except TimeoutError:
            raise await self._failed(
                f"{late} within {self._timeout_s:g} s: it hangs, its scene is paused, or an error in its scripts keeps "
                "it from answering. If it only needs longer, raise --timeout-wait (env_settings.timeout_wait)"
            ) from None
        except TooLarge as error:
            raise await self._failed(
                f"has sent a message of {error.size:,} bytes; the limit is {self._max_message_mib} MiB, set by "
                "env_settings.max_message_mib: raise it, or let the agents observe less. Is it really the addon of "
                "Godot RL Agents that calls this port?"
            ) from None
        except WireError as error:
            raise await self._failed(str(error)) from None
        except ConnectionClosed as error:
            raise await self._gone(error) from None
        if message["type"] != kind:
            raise await self._failed(f"has answered with a message of type {message['type']!r}, expected {kind!r}")
        return message

    async def _gone(self, lost: ConnectionClosed) -> ProgramBroken | ProgramEnded:
        """The error for a connection that was closed: the end of the process, if that follows."""
        ended = self._process is not None and await self._process.exited(_LAST_WORDS_S)
        try:
            if lost.in_answer:
                return self._broken("closed the connection in the middle of an answer")
            if self._process is None:
                return ProgramEnded(f"{self.name} was stopped")
            if not ended:
                return self._broken("dropped the connection without a word")
            return self._death()
        finally:
            await self._release()

    async def _failed(self, what: str) -> ProgramBroken:
        error = self._broken(what)
        await self._release()
        return error

    def _broken(self, what: str) -> ProgramBroken:
        return ProgramBroken(f"{self.name} {what}.{self._log_tail()}")

    def _death(self) -> ProgramBroken | ProgramEnded:
        assert self._process is not None
        code = self._process.returncode
        if code == 0 and self._announced:
            return ProgramEnded(f"{self.name} has quit, with return code 0")
        assert code is not None
        if self._announced:
            return self._broken(f"ended with {describe_exit(code)}")
        hint = "" if code else f"; has its main scene {_SYNC_NODE}?"
        return self._broken(f"ended with {describe_exit(code)} before it had told of its agents{hint}")

    def _log_tail(self) -> str:
        return "" if self._build is None else tail(log_of(self._build, self.worker_id))

    def _on_exit(self, returncode: int) -> None:
        self._died.set()
        self._server.interrupt(ConnectionClosed())

    def _cure_for_port(self) -> str:
        if self._build is None:
            return (
                "The editor calls this one, so end what listens there, most likely another training; or export the "
                "game and train with --env, on a port chosen by --base-port"
            )
        return (
            "End that program, or choose other ports with --base-port (env_settings.base_port); worker n takes "
            "base_port + n, and with base_port 0 each takes one that is free"
        )

    async def _release(self) -> None:
        """Release everything at once: kill the process, and stop listening."""
        self._over = True
        if self._process is not None:
            self._process.kill()
            await self._process.exited(_KILL_S)
        self._server.close()

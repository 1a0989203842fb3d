"""Runs one game that connects to Headrace: starts it, exchanges messages, ends it, and handles failures.

Protocols add their messages: the workers of `godot/` and `open_protocol/` derive from `GameWorker`.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.config import EnvSettings, RunConfig
from headrace.stages.environments.programs.answer_time import AnswerTime
from headrace.stages.environments.programs.errors import MessageError, ProgramBroken, ProgramEnded
from headrace.stages.environments.programs.process import Launch, ProgramProcess, describe_exit, tail
from headrace.stages.environments.programs.server import ConnectionClosed, GameServer, TooLarge

log = logging.getLogger(__name__)

_LAST_WORDS_S = 2.0
"""Seconds to wait for the process to exit after its connection has ended."""
_BEYOND_ALL = 2**30
"""A number above this can't be the length of a message, so it must mean something else."""
_KILL_S = 10.0
"""Seconds to wait for the system to end a killed process."""


@dataclass(frozen=True, slots=True)
class WorkerWording:
    """An engine's terms for a worker, used in messages."""

    program: str
    """Name of a program that the worker starts, such as `Godot worker`."""
    unstarted: str
    """Name of a program that the user starts, such as `Godot's editor`."""
    taken_port: str
    """Sentence with the remedy if the port of the `unstarted` program is in use."""


@dataclass(frozen=True, slots=True)
class Wording(WorkerWording):
    """An engine's terms for a `GameWorker`, used in messages."""

    invitation: str
    """Sentence about what the user must do to start the game."""
    next_start: str
    """The event that continues the run after the game has ended, such as `the next Play`."""
    needs: str
    """Question about what the game needs in order to connect, such as `has its main scene …?`."""
    argument: str
    """The argument that passes the port or address to the program."""
    late: str
    """Sentence about why a game that the user starts may not connect, with the remedy."""
    stranger: str
    """Question about a message of impossible length, such as `Is it really the addon … that calls this port?`."""
    paused: str
    """Text for messages: why a game may not answer. It stands between `it hangs,` and a full stop."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The settings of an engine's worker."""

    worker_id: int
    """Number of the game in the run, from 0."""
    port: int
    """The port for the game; 0 for any free one."""
    seed: int
    """The seed of the game's random numbers."""
    timeout_s: float
    """Time limit in seconds for the start, and for each exchange."""
    max_message_mib: int = EnvSettings().max_message_mib
    """Largest message, in MiB."""
    patient: bool = False
    """True to wait without limit until the user restarts the game."""


def worker_settings(config: RunConfig, worker_id: int, seed: int, patient: bool) -> WorkerSettings:
    """Return the settings of worker n from `env_settings`, with the run's seed + n."""
    env = config.env_settings
    port = env.base_port + worker_id if env.base_port else 0
    return WorkerSettings(worker_id, port, seed + worker_id, env.timeout_wait, env.max_message_mib, patient)


class ProgramWorker:
    """Base class of all engines' workers. It holds the program to start and the worker's name.

    Args:
        settings: the worker's settings.
        launch: the program to start; None if its user starts it.
        wording: the engine's terms for messages.

    Attributes:
        port: the program's port; if it was 0, `start` sets the actual port.
        timeout_s: the time limit in seconds for the next exchange. It may be changed between exchanges.
    """

    def __init__(self, settings: WorkerSettings, launch: Launch | None, wording: WorkerWording) -> None:
        self.port = settings.port
        self.timeout_s = settings.timeout_s
        self._settings = settings
        self._launch = launch
        self._names = wording
        self._process: ProgramProcess | None = None

    @property
    def name(self) -> str:
        """The worker's name in log messages and errors."""
        if self._launch is None:
            return f"{self._names.unstarted} (port {self.port})"
        worker = f"{self._names.program} {self._settings.worker_id}"
        return f"{worker} ({Path(self._launch.path).name}, port {self.port})"

    @property
    def pid(self) -> int | None:
        """The program's process id, even after its exit. None before `start`, or if the user starts the program."""
        return None if self._process is None else self._process.pid

    def _cure_for_port(self) -> str:
        if self._launch is None:
            return self._names.taken_port
        return (
            "End that program, or choose other ports with --base-port (env_settings.base_port); worker n uses "
            "base_port + n, and with base_port 0 each worker uses a free port"
        )


class GameWorker(ProgramWorker):
    """One game: a program that the worker starts, or one that its user starts.

    The first call must be the derived class's `start`; after a `ProgramBroken`, a `ProgramEnded` or a cancelled call
    only `close` is allowed.

    Args:
        settings: the worker's settings.
        server: the server for the game.
        launch: the program to start; None if its user starts it.
        wording: the engine's terms for messages.
    """

    def __init__(self, settings: WorkerSettings, server: GameServer, launch: Launch | None, wording: Wording) -> None:
        super().__init__(settings, launch, wording)
        self._server = server
        self._wording = wording
        self._died = asyncio.Event()
        self._announced = False
        self._over = False
        self._owes = False
        """True while a request is unanswered: the game may then treat any other message as an error."""

    def read(self, content: bytes) -> dict[str, Any]:
        """Read a message from the game.

        Raises:
            MessageError: if the bytes are not a message.
        """
        raise NotImplementedError

    def check(self, message: dict[str, Any], kind: str) -> None:
        """Check that a message has the requested kind.

        Raises:
            MessageError: if the message has a different kind.
            ProgramEnded: if the game announces its end.
        """
        if message["type"] != kind:
            raise MessageError(f"answered with a message of type {message['type']!r}; expected {kind!r}")

    async def close(self, patience_s: float | None = None) -> None:
        """End the game. A program that takes too long to quit is killed.

        A run may end in the middle of a step. In that case, the game gets no message until its pending answer has
        arrived.

        Args:
            patience_s: seconds for the program to answer, and then to exit; None for `timeout_s`.
        """
        patience_s = self.timeout_s if patience_s is None else patience_s
        if self._announced and not self._over:
            listens = not self._owes or await self._answered(patience_s)
            if listens:
                self.say_goodbye()
            if self._process is not None and not await self._process.exited(patience_s if listens else 0):
                late = "after the request" if listens else "with its answer"
                log.warning("%s did not end within %g s %s; killing it", self.name, patience_s, late)
        await self._release()

    async def _answered(self, patience_s: float) -> bool:
        """Wait for the pending answer; return True if it has arrived."""
        with suppress(TimeoutError, ConnectionClosed, TooLarge):
            async with asyncio.timeout(patience_s):
                await self._server.receive()
            return True
        return False

    def say_goodbye(self) -> None:
        """Send the game the message that ends it."""
        raise NotImplementedError

    async def _connected(self) -> None:
        """Listen, start the program or wait for its user, and wait for the game's connection.

        After a failure or cancellation, call `_release`.

        Raises:
            ProgramRefused: if the port is in use, or the program does not exist.
            ProgramBroken: if the program exits or does not connect.
        """
        await self._server.start(self.name, self._cure_for_port())
        self.port = self._server.port
        if self._launch is None:
            log.info("Listening on port %d. %s", self.port, self._wording.invitation)
        else:
            command = self._launch.command(self.port, self._settings.seed)
            self._process = await ProgramProcess.launch(
                command, self._launch.show_output, self._on_exit, self._launch.log_file
            )
        await self._called()

    async def _called(self) -> None:
        connected = asyncio.ensure_future(self._server.connected())
        died = asyncio.ensure_future(self._died.wait())
        done: set[Any] = set()
        try:
            while not done:
                with suppress(TimeoutError):
                    async with AnswerTime(self.timeout_s):
                        done, _ = await asyncio.wait((connected, died), return_when=asyncio.FIRST_COMPLETED)
                if not (self._settings.patient and self._launch is None):
                    break
                if not done:
                    log.info(
                        "%s is still waiting for %s; Ctrl-C ends the run, with a checkpoint.",
                        *(self.name, self._wording.next_start),
                    )
        finally:
            connected.cancel()
            died.cancel()
        if connected in done:
            return
        if died in done:
            raise self._death()
        if self._launch is None:
            raise self._broken(f"hasn't connected within {self.timeout_s:g} s. {self._wording.late}")
        raise self._broken(
            f"hasn't connected within {self.timeout_s:g} s. The program is running: {self._wording.needs}, and does it "
            f"read the port from its arguments ({self._wording.argument})? If it only needs more time, raise "
            "--timeout-wait (env_settings.timeout_wait)"
        )

    async def _ask(self, content: bytes, kind: str, late: str) -> dict[str, Any]:
        """Send a request and return the answer, which must be of this kind. `late` describes a missing answer."""
        if self._over:
            raise ProgramBroken(f"{self.name} isn't connected: it has failed, or was never started")
        if self._server.unasked:
            raise await self._failed("sent a message that was not requested")
        self._owes = True
        self._server.send(content)
        return await self._answer(kind, late)

    async def _answer(self, kind: str, late: str) -> dict[str, Any]:
        """Wait for a message of this kind. `late` describes a missing answer."""
        try:
            async with AnswerTime(self.timeout_s):
                answer = await self._server.receive()
            self._owes = False
            message = self.read(answer)
            self.check(message, kind)
        except TimeoutError:
            part = self._server.arrived
            why = (
                f"it hangs, {self._wording.paused}"
                if part is None
                else f"{part[0]:,} of {part[1]:,} announced bytes have arrived"
            )
            raise await self._failed(
                f"{late} within {self.timeout_s:g} s: {why}. If it only needs more time, raise --timeout-wait "
                "(env_settings.timeout_wait)"
            ) from None
        except TooLarge as error:
            raise await self._failed(self._too_large(error)) from None
        except MessageError as error:
            raise await self._failed(str(error)) from None
        except ConnectionClosed as error:
            raise await self._gone(error) from None
        return message

    def _too_large(self, error: TooLarge) -> str:
        if looks := self._looks_of(error):
            return (
                f"sent the bytes {error.header.hex(' ')} ({looks}) instead of the length of a message (four bytes, "
                f"little-endian). {self._wording.stranger}"
            )
        return (
            f"sent a message of {error.size:,} bytes; the limit is {self._settings.max_message_mib} MiB, set by "
            "env_settings.max_message_mib: raise the limit, or reduce the agents' observations. "
            f"{self._wording.stranger}"
        )

    def _looks_of(self, error: TooLarge) -> str:
        """Describe the data received in place of a length, if it is recognisable; otherwise return an empty string."""
        header, turned = error.header, int.from_bytes(error.header, "big")
        if not header:
            return ""
        if header.isascii() and header.decode().isprintable():
            return f"the text {header.decode()!r}"
        if (header[:2] == b"\0\0" or error.size > _BEYOND_ALL) and turned <= self._settings.max_message_mib * 2**20:
            return f"{turned:,} as a big-endian number"
        return ""

    async def _gone(self, lost: ConnectionClosed) -> ProgramBroken | ProgramEnded:
        """Return the error for a closed connection. If the process then exits, the error describes its exit."""
        ended = self._process is not None and await self._process.exited(_LAST_WORDS_S)
        try:
            if lost.in_answer:
                return self._broken("closed the connection in the middle of an answer")
            if self._process is None:
                return ProgramEnded(f"{self.name} was stopped")
            if not ended:
                return self._broken("dropped the connection without a message")
            return self._death()
        finally:
            await self._release()

    async def _failed(self, what: str) -> ProgramBroken:
        error = self._broken(what)
        await self._release()
        return error

    def _broken(self, what: str) -> ProgramBroken:
        end = "" if what.endswith("?") else "."
        return ProgramBroken(f"{self.name} {what}{end}{self._log_tail()}")

    def _death(self) -> ProgramBroken | ProgramEnded:
        assert self._process is not None
        code = self._process.returncode
        if code == 0 and self._announced:
            return ProgramEnded(f"{self.name} quit with return code 0")
        assert code is not None
        if self._announced:
            return self._broken(f"ended with {describe_exit(code)}{self._suspicion()}")
        hint = "" if code else f"; {self._wording.needs}?"
        return self._broken(f"ended with {describe_exit(code)} before it announced its agents{hint}")

    def _suspicion(self) -> str:
        """Return the likely cause of a game's crash, preceded by a semicolon, or an empty string if it is unknown."""
        return ""

    def _log_tail(self) -> str:
        return "" if self._launch is None else tail(self._launch.log_file)

    def _on_exit(self, returncode: int) -> None:
        self._died.set()
        self._server.interrupt(ConnectionClosed())

    async def _release(self) -> None:
        """Release all resources immediately: kill the process, and stop listening."""
        self._over = True
        if self._process is not None:
            self._process.kill()
            await self._process.exited(_KILL_S)
        self._server.close()

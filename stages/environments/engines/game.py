"""One game that connects to Headrace: its process, its connection, and its agents' episodes.

An engine derives its own game from `Game`, which adds the engine's messages: `unity/`, `godot/` and `open_protocol/`.
A game calls Headrace over a `Transport`, and each request to the game gets one answer.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from headrace.config import EnvSettings, RunConfig
from headrace.queues.messages import ActionBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.activity import preparing
from headrace.stages.environments.engines.errors import (
    GameBroken,
    GameDied,
    GameEnded,
    GameLate,
    MessageError,
)
from headrace.stages.environments.engines.process import Build, GameProcess, describe_exit, tail
from headrace.stages.environments.engines.rows import GameEpisodes, TrackedRows
from headrace.stages.environments.engines.transport import ConnectionClosed, TooLarge, Transport
from headrace.stages.environments.protocol import StatisticValues

log = logging.getLogger(__name__)

_LAST_WORDS_S = 2.0
"""Seconds to wait for the process to exit after its connection has ended."""
_PATIENCE_S = 3.0
"""Seconds to wait for a broken game to exit before it is killed and restarted."""
_KILL_S = 10.0
"""Seconds to wait for the system to end a killed process."""
_MORE_TIME = "If it only needs more time, raise --timeout-wait (env_settings.timeout_wait)"


@dataclass(frozen=True, slots=True)
class Wording:
    """An engine's terms, used in messages."""

    game: str
    """Name of a game that Headrace starts, such as `Godot worker`."""
    unstarted: str
    """Name of a game that the user starts, such as `Godot's editor`."""
    taken_port: str
    """Sentence with the remedy if the port of the `unstarted` game is in use."""
    invitation: str
    """Sentence about what the user must do to start the `unstarted` game, and to make it connect."""
    needs: str
    """Question about what the game needs in order to connect, such as `does its main scene have …`."""
    argument: str
    """The argument that passes the port or address to the game."""
    stranger: str
    """Question about a message that no game sends, such as `Is it really the addon … that calls this port?`."""
    paused: str
    """Why a game may not answer. The text stands between `it hangs,` and a full stop."""


@dataclass(frozen=True, slots=True)
class GameSettings:
    """The settings of one game."""

    worker_id: int
    """Number of the game in the run, from 0."""
    port: int
    """The port for the game; 0 for any free one."""
    seed: int
    """The seed of the game's random numbers."""
    timeout_s: float
    """Time limit in seconds for the connection, and for each exchange."""
    max_message_mib: int = EnvSettings().max_message_mib
    """Largest message, in MiB."""


def game_settings(config: RunConfig, worker_id: int, seed: int) -> GameSettings:
    """Return the settings of game n from `env_settings`, with the run's seed + n."""
    env = config.env_settings
    port = env.base_port + worker_id if env.base_port else 0
    return GameSettings(worker_id, port, seed + worker_id, env.timeout_wait, env.max_message_mib)


@dataclass(frozen=True, slots=True)
class GameAnswer:
    """A game's answer, with at least one row."""

    rows: Mapping[str, TrackedRows]
    """The rows, keyed by behaviour id."""
    statistics: Mapping[str, StatisticValues] = field(default_factory=dict)
    """Statistics of all behaviours."""
    behavior_statistics: Mapping[str, Mapping[str, StatisticValues]] = field(default_factory=dict)
    """Statistics of individual behaviours, keyed by behaviour name."""

    @property
    def asks_for_decisions(self) -> bool:
        """True if any agent needs a decision."""
        return any(len(rows.columns) > rows.columns.ended for rows in self.rows.values())


class Game(ABC):
    """One game: a build that Headrace starts, or a game that its user starts. It can be restarted after a failure.

    A group calls `begin`, then `step` and `reset`. `start` only connects; the engine's `request_…` methods then
    exchange single messages. After a `GameBroken`, a `GameEnded` or a cancelled call, only `begin`, `start` and `close`
    are allowed.

    Args:
        settings: the game's settings. Port 0 is allowed only if a build is given.
        build: the build to start; None if its user starts the game.
        wording: the engine's terms for messages.

    Attributes:
        port: the game's port; if the settings have 0, `start` sets the actual port.
        timeout_s: the time limit in seconds for the next exchange. It may be changed between exchanges.
        connected: True once the game has connected to the group.
        specs: the specs of the game's behaviours so far, keyed by behaviour id.
    """

    waits_for_restart: ClassVar[bool] = True
    """True to wait without limit for the next start of a game that its user starts, once it has been connected."""
    says_goodbye: ClassVar[bool] = False
    """True if the game blocks until it is answered, and says goodbye before it leaves.

    Then a connection that ends without a goodbye has broken, and so has a game that exits while it waits for its
    answer, whatever its return code (docs/decisions/054).
    """

    def __init__(self, settings: GameSettings, build: Build | None, wording: Wording) -> None:
        self.port = settings.port
        self.timeout_s = settings.timeout_s
        self.connected = False
        self.specs: dict[str, BehaviorSpec] = {}
        self._settings = settings
        self._build = build
        self._wording = wording
        self._episodes = GameEpisodes()
        self._transport: Transport | None = None
        self._process: GameProcess | None = None
        self._died = asyncio.Event()
        self._announced = False
        """True once the game has connected and announced itself."""
        self._is_over = True
        """True if no message may be exchanged: before the start, and after a failure or the game's end."""
        self._is_unanswered = False
        """True while a request is unanswered: the game may then treat any other message as an error."""
        self._exited_in_wait = False
        """True if the process exited while the game waited for a request."""

    @property
    def label(self) -> str:
        """The game's kind and number, used in log messages and errors."""
        return f"{self._wording.game} {self._settings.worker_id}"

    @property
    def name(self) -> str:
        """The label with the build and port, or what the user starts with the port, used in errors."""
        if self._build is None:
            return f"{self._wording.unstarted} (port {self.port})"
        return f"{self.label} ({Path(self._build.path).name}, port {self.port})"

    @property
    def pid(self) -> int | None:
        """The build's process id, even after its exit. None before `start`, or if the user starts the game."""
        return None if self._process is None else self._process.pid

    @abstractmethod
    def _make_transport(self) -> Transport:
        """Make the transport, which listens on the settings' port."""

    @abstractmethod
    async def _announce(self) -> None:
        """Exchange the messages with which a connected game announces itself. Raises the same errors as `start`."""

    @abstractmethod
    def _read(self, content: bytes, kind: str) -> Any:
        """Read a message, which must be of a kind.

        Raises:
            MessageError: if the bytes are not a message of this kind.
            GameEnded: if the game announces its end.
        """

    @abstractmethod
    def _say_goodbye(self) -> None:
        """Send the game the message that ends it."""

    @abstractmethod
    async def _reset(self) -> GameAnswer:
        """Reset all agents. Raises the same errors as `begin`."""

    @abstractmethod
    async def step(self, actions: Mapping[str, ActionBatch]) -> GameAnswer:
        """Let the agents that needed decisions act, and wait for an answer. Raises the same errors as `begin`."""

    async def begin(self) -> GameAnswer:
        """Start or restart the game, and reset all agents.

        Raises:
            GameBroken: if the game breaks; another attempt may help.
            GameRefused: if the game can't be used with its current setup.
            GameEnded: if the game ends normally.
        """
        await self.close(_PATIENCE_S)
        await self.start()
        self.connected = True
        return await self.reset()

    async def reset(self) -> GameAnswer:
        """Reset all agents. Raises the same errors as `begin`."""
        self._episodes.clear()
        return await self._reset()

    async def start(self) -> None:
        """Listen, start the build or wait for the user's game, and wait for its announcement.

        Releases all resources after a failure or cancellation.

        Raises:
            GameRefused: if the port is in use, the build does not exist, or the announcement is not supported.
            GameBroken: if the game exits, or does not connect or announce itself in time.
            GameEnded: if the game closes normally.
        """
        self.port = self._settings.port
        self._process, self._died = None, asyncio.Event()
        self._announced = self._is_over = self._is_unanswered = self._exited_in_wait = False
        with preparing():  # may import libraries and the user's modules
            self._transport = self._make_transport()
        try:
            await self._transport.start(self.name, self._cure_for_port())
            self.port = self._transport.port
            if self._build is None:
                log.info("Listening on port %d. %s", self.port, self._wording.invitation)
            else:
                build, command = self._build, self._build.command(self.port, self._settings.seed)
                if build.log is not None:
                    build.log.parent.mkdir(parents=True, exist_ok=True)
                on_exit = self._watch(self._transport)
                self._process = await GameProcess.launch(command, build.show_output, on_exit, build.output_file)
            await self._wait_for_connection(self._transport)
            await self._announce()
        except BaseException:
            await self._release()
            raise
        self._announced = True

    async def close(self, patience_s: float | None = None) -> None:
        """End the game, in any state. A build that takes too long to quit is killed. Closing twice is allowed.

        A run may end in the middle of a step. In that case, the game gets no message until its pending answer has
        arrived.

        Args:
            patience_s: seconds for the game to answer, and then to exit; None for `timeout_s`.
        """
        patience_s = self.timeout_s if patience_s is None else patience_s
        if self._transport is None:
            return
        if self._announced:
            listens = not self._is_unanswered or await self._answered(self._transport, patience_s)
            if listens:
                self._say_goodbye()
            if self._process is not None and not await self._process.exited(patience_s if listens else 0):
                late = "after the request" if listens else "with its answer"
                log.warning("%s did not end within %g s %s; killing it", self.name, patience_s, late)
        await self._release()

    async def _answered(self, transport: Transport, patience_s: float) -> bool:
        """Wait for the pending answer; return True if it has arrived."""
        with suppress(TimeoutError, ConnectionClosed, TooLarge):
            async with asyncio.timeout(patience_s):
                await transport.receive()
            return True
        return False

    def _cure_for_port(self) -> str:
        if self._build is None:
            return self._wording.taken_port
        return (
            "End that program, or choose other ports with --base-port (env_settings.base_port); worker n uses "
            "base_port + n, and with base_port 0 each worker uses a free port"
        )

    def _watch(self, transport: Transport) -> Callable[[int], None]:
        """Return the function to call at the exit of the process that belongs to this transport."""
        died = self._died

        def on_exit(returncode: int) -> None:
            self._exited_in_wait = not self._is_unanswered
            died.set()
            transport.interrupt(ConnectionClosed())

        return on_exit

    async def _wait_for_connection(self, transport: Transport) -> None:
        connected = asyncio.ensure_future(transport.connected())
        died = asyncio.ensure_future(self._died.wait())
        done: set[Any] = set()
        try:
            while not done:
                with suppress(TimeoutError):
                    async with AnswerTime(self.timeout_s):
                        done, _ = await asyncio.wait((connected, died), return_when=asyncio.FIRST_COMPLETED)
                if not (self.waits_for_restart and self.connected and self._build is None):
                    break
                if not done:
                    log.info("Still waiting for %s to start; Ctrl-C ends the run, with a checkpoint.", self.name)
        finally:
            connected.cancel()
            died.cancel()
        if connected in done:
            return
        if died in done:
            raise self._death()
        why = self._wording.invitation
        if self._build is not None:
            why = (
                f"The program is running: {self._wording.needs}, and does it read the port from its arguments "
                f"({self._wording.argument})?"
            )
        raise self._broken(
            f"hasn't connected within {self.timeout_s:g} s. {why} {_MORE_TIME}{self._suspicion()}", GameLate
        )

    async def _ask(self, content: bytes, kind: str, late: str, why: str = "") -> Any:
        """Send a request and return the answer, which must be of this kind; `late` and `why` as in `_answer`."""
        if self._is_over or self._transport is None:
            raise GameBroken(f"{self.name} isn't connected: it has been closed, has failed, or was never started")
        if self._transport.unasked:
            raise await self._failed("sent a message that was not requested")
        self._is_unanswered = True
        self._transport.send(content)
        return await self._answer(kind, late, why)

    async def _answer(self, kind: str, late: str, why: str = "") -> Any:
        """Wait for a message of this kind.

        Args:
            kind: the kind of message, as in `_read`.
            late: describes a missing answer, after the game's name.
            why: the likely cause of a missing answer; by default, that the game hangs.
        """
        assert self._transport is not None, "start comes first"
        try:
            async with AnswerTime(self.timeout_s):
                content = await self._transport.receive()
            self._is_unanswered = False
            return self._read(content, kind)
        except TimeoutError:
            part = self._transport.arrived
            if part is not None:
                why = f"{part[0]:,} of {part[1]:,} announced bytes have arrived"
            why = why or f"it hangs, {self._wording.paused}"
            raise await self._failed(
                f"{late} within {self.timeout_s:g} s: {why}. {_MORE_TIME}{self._suspicion()}", GameLate
            ) from None
        except TooLarge as error:
            raise await self._failed(self._too_large(error)) from None
        except MessageError as error:
            raise await self._failed(str(error)) from None
        except ConnectionClosed as error:
            raise await self._gone(error) from None
        except GameEnded:
            self._is_over = True
            await self._transport.close()  # the next start may use the port, even if this game is slow to exit
            raise

    def _limit(self) -> str:
        return f"{self._settings.max_message_mib} MiB, set by env_settings.max_message_mib"

    def _too_large(self, error: TooLarge) -> str:
        size = "" if error.size is None else f" of {error.size:,} bytes"
        sent = f" (by the length {error.header.hex(' ')}, little-endian)" if error.header else ""
        return (
            f"sent a message{size}{sent} above the limit of {self._limit()}: raise the limit, or send fewer or smaller "
            f"observations. {self._wording.stranger}"
        )

    async def _gone(self, lost: ConnectionClosed) -> GameBroken | GameEnded:
        """Return the error for a closed connection. If the process then exits, the error describes its exit."""
        exited = self._process is not None and await self._process.exited(_LAST_WORDS_S)
        try:
            if lost.in_answer:
                end = f"; it {self._exit()}" if exited else ""
                return self._broken(f"closed the connection in the middle of an answer{end}")
            if exited:
                return self._death()
            if self._process is None and not self.says_goodbye:
                return GameEnded(f"{self.name} was stopped")
            return self._broken("dropped the connection without a message")
        finally:
            await self._release()

    async def _failed(self, what: str, kind: type[GameBroken] = GameBroken) -> GameBroken:
        """Kill the game, and return the error."""
        error = self._broken(what, kind)
        await self._release()
        return error

    def _broken(self, what: str, kind: type[GameBroken] = GameBroken) -> GameBroken:
        end = "" if what.endswith(("?", ".")) else "."
        return kind(f"{self.name} {what}{end}{self._log_tail()}")

    def _exit(self) -> str:
        assert self._process is not None
        assert self._process.returncode is not None
        return f"ended with {describe_exit(self._process.returncode)}"

    def _death(self) -> GameBroken | GameEnded:
        assert self._process is not None
        code = self._process.returncode
        if code == 0 and self._announced and not (self.says_goodbye and self._exited_in_wait):
            return GameEnded(f"{self.name} quit with return code 0")
        how = self._exit()
        if not self._announced:
            how += f" before it announced its agents{'' if code else f'; {self._wording.needs}?'}"
        return self._broken(f"{how}{self._suspicion()}", GameDied)

    def _suspicion(self) -> str:
        """Return a likely cause of a game's crash or silence as the end of a sentence, or an empty string."""
        return ""

    def _log(self) -> Path | None:
        """Return the path of the game's log; None if it is unknown."""
        return None if self._build is None else self._build.log

    def _log_tail(self) -> str:
        return "" if self._build is None else tail(self._log())

    async def _release(self) -> None:
        """Release all resources immediately: kill the process, and stop listening."""
        self._is_over, self._announced = True, False
        transport, self._transport = self._transport, None
        if self._process is not None:
            self._process.kill()
            await self._process.exited(_KILL_S)
        if transport is not None:
            await transport.close()


def merged_statistics(statistics: Iterable[Mapping[str, StatisticValues]]) -> dict[str, StatisticValues]:
    """Merge several games' statistics for one tick."""
    merged: dict[str, StatisticValues] = {}
    for one in statistics:
        for name, measured in one.items():
            before = merged.get(name)
            merged[name] = measured if before is None else StatisticValues(before.values + measured.values, before.how)
    return merged


# A time limit for a game's answer: an answer that arrived in time counts, even if this process reads it late.

_EXTENSION_S = 1.0
"""If a wake-up is this many seconds late, the event loop was blocked, for example by an import, a policy or a busy
machine. The limit is then extended by this time, to receive the answers that arrived meanwhile."""
_EXTENSIONS = 10
"""Maximum number of extensions. Several may be needed, because the loop may block again before the data has passed from
the socket to its reader."""


class AnswerTime:
    """A time limit for the awaits in its context, extended a little if the event loop was blocked at the limit.

    So an answer that arrived while the loop was blocked still counts.

    Args:
        seconds: the limit.

    Raises:
        TimeoutError: after the limit.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)
        self._planned = 0.0
        self._extensions = _EXTENSIONS

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()
        self._plan(self._seconds)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def _plan(self, seconds: float) -> None:
        self._planned = self._loop.time() + seconds
        self._timer = self._loop.call_at(self._planned, self._expire)

    def _expire(self) -> None:
        if self._extensions and self._loop.time() - self._planned > _EXTENSION_S:
            self._extensions -= 1
            self._plan(_EXTENSION_S)
        else:
            self._limit.reschedule(self._loop.time())

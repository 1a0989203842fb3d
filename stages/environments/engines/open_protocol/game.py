"""One game that speaks the open protocol, and the group of several: the order of messages, and the agents' rows.

`messages` reads and writes messages, and `columns` converts their content.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config.environment import OpenProtocolSettings
from headrace.queues.messages import ActionBatch
from headrace.stages.environments.engines.errors import GameBroken, GameEnded, GameRefused, MessageError
from headrace.stages.environments.engines.game import (
    Game,
    GameAnswer,
    GameSettings,
    Wording,
    game_settings,
    merged_statistics,
)
from headrace.stages.environments.engines.group import RUN_LOGS, GameGroup, make_game_group
from headrace.stages.environments.engines.open_protocol.messages import (
    VERSION,
    Format,
    Hello,
    actions_part,
    decode,
    encode,
    format_of,
    read_hello,
    read_state,
)
from headrace.stages.environments.engines.process import Build, find_executable
from headrace.stages.environments.engines.transport import TcpTransport, Transport
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.parameters import EpisodeParameters
from headrace.stages.environments.protocol import StatisticValues
from headrace.startup_context import shortened

log = logging.getLogger(__name__)

TRAINER = "headrace"
_MOST_EMPTY = 100_000
"""Number of consecutive states without a row after which a game counts as broken."""
_TO_READ_S = 1.0
"""Seconds to wait for a game to read the error about its message, before the game is killed."""
_SEED = 0x7FFFFFFF
_WORDING = Wording(
    game="Game",
    unstarted="the game",
    invitation="Start the game, which must connect to this port; docs/protocol.md describes its messages.",
    needs="does it connect and send a hello",
    argument="--trainer=tcp://… or ws://…",
    stranger="Is the program on this port really a game?",
    paused="or an error in its code prevents an answer",
    taken_port="End that program, most likely another training run, or choose another port with --base-port",
)


@dataclass(frozen=True, slots=True)
class OpenBuild(Build):
    """The command that starts a game: the game itself, or a system command such as `node`, with its arguments."""

    scheme: str = "tcp"
    """The transport that the game uses: `tcp` or `ws`."""

    def command(self, port: int, seed: int) -> list[str]:
        """Return the program, the user's arguments, the address and the seed. Raises the same errors as `Build`."""
        executable = str(find_executable(Path(self.path)))
        return [executable, *self.arguments, f"--trainer={self.scheme}://127.0.0.1:{port}", f"--seed={seed & _SEED}"]


class OpenGame(Game):
    """One game that speaks the open protocol.

    Args:
        settings: the game's settings. Port 0 is allowed only if a build is given.
        transport: `tcp` or `websocket`.
        build: the build to start; None if the user starts the game.
        index: number of the game in its group.
        parameters: the environment parameters; None if the run has none.

    Attributes:
        hello: the game's hello; available once the game is started.
    """

    hello: Hello

    def __init__(
        self,
        settings: GameSettings,
        transport: str,
        build: OpenBuild | None,
        index: int = 0,
        parameters: EpisodeParameters | None = None,
    ) -> None:
        if build is not None and transport != "tcp":
            build = replace(build, scheme="ws")
        super().__init__(settings, build, _WORDING)
        self._transport_kind = transport
        self._form: Format = "json"
        self._number = 0
        """Number of the last `reset` or `act` message."""
        self._index = index
        self._parameters = parameters
        self._generation = 0
        self._deciding: dict[str, NDArray[np.int32]] = {}
        """Ids of the agents that need decisions, keyed by behaviour id."""

    def _make_transport(self) -> Transport:
        self._form, self._number = "json", 0
        max_bytes = self._settings.max_message_mib * 2**20
        if self._transport_kind == "tcp":
            return TcpTransport(self.port, max_bytes)
        from headrace.stages.environments.engines.open_protocol.websocket import (
            WebSocketTransport,  # imports aiohttp, which plain TCP does not need
        )

        return WebSocketTransport(self.port, max_bytes)

    async def _announce(self) -> None:
        message = await self._answer("hello", "has connected, but has not sent a hello")
        try:
            self.hello = read_hello(message)
        except MessageError as error:  # a restart would get the same announcement
            raise GameRefused(str(await self._failed(str(error)))) from None
        self._send({"type": "welcome", "protocol": VERSION, "trainer": TRAINER})
        self.specs = self.hello.specs
        log.info("Connected to %s: %s, with %s.", self.name, self.hello.game, ", ".join(self.specs))

    def _read(self, content: bytes, kind: str) -> Any:
        """Read a message, and use its format for the next messages to the game.

        Instead of the requested message, a game may report its end or an error.
        """
        self._form = format_of(content)
        message = decode(content)
        if message["type"] == "close":
            raise GameEnded(f"{self.name} has ended: {message.get('reason') or 'it gave no reason'}")
        if message["type"] == "error":
            raise MessageError(f"has failed: {message.get('message') or 'it gave no reason'}")
        if message["type"] != kind:
            raise MessageError(f"answered with a message of type {message['type']!r}; expected {kind!r}")
        number = message.get("number")
        if kind == "state" and (isinstance(number, bool) or number != self._number):
            what = "without a number" if number is None else f"with the number {repr(number)[:60]}"
            raise MessageError(
                f"sent a state {what}; expected {self._number}, the number of the last reset or act: answer each "
                "request once, and in order"
            )
        return message

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._transport is not None:
            self._transport.send(encode(message, self._form))

    def _say_goodbye(self) -> None:
        self._send({"type": "close"})

    async def request_reset(self, parameters: Mapping[str, float], seed: int | None = None) -> Any:
        """Reset all agents; return the game's state. Raises the same errors as `request_step`.

        Args:
            parameters: all environment parameters.
            seed: seeds the game's random numbers; None to continue the random sequence.
        """
        request: dict[str, Any] = {"type": "reset", "parameters": dict(parameters)}
        if seed is not None:
            request["seed"] = seed
        return await self._request(request, "has not answered a reset request")

    async def request_step(self, actions: Mapping[str, Any], parameters: Mapping[str, float] | None = None) -> Any:
        """Let agents act, and wait for the next state.

        Args:
            actions: the results of `columns.actions_part`, keyed by behaviour id.
            parameters: all environment parameters; None if they have not changed.

        Raises:
            GameBroken: if the game died, did not answer, dropped the connection, or broke the protocol.
            GameEnded: if the game has closed normally.
        """
        request: dict[str, Any] = {"type": "act", "actions": actions}
        if parameters is not None:
            request["parameters"] = dict(parameters)
        return await self._request(request, "hasn't sent its next state")

    async def _request(self, request: dict[str, Any], late: str) -> Any:
        self._number += 1
        return await self._ask(encode({**request, "number": self._number}, self._form), "state", late)

    async def refuse(self, what: str) -> GameBroken:
        """Report an invalid message to the game, and end the game; return the error, which names the game."""
        return await self._failed(what)

    async def _failed(self, what: str, kind: type[GameBroken] = GameBroken) -> GameBroken:
        if not self._is_unanswered:  # a late game is busy, and has sent nothing invalid
            self._send({"type": "error", "message": shortened(what)})
            if self._process is not None:
                await self._process.exited(_TO_READ_S)
        return await super()._failed(what, kind)

    async def _reset(self) -> GameAnswer:
        return await self._answer_of(await self.request_reset(self._current_parameters() or {}))

    async def step(self, actions: Mapping[str, ActionBatch]) -> GameAnswer:
        """See `Game`."""
        parts = {
            behavior_id: actions_part(self._deciding[behavior_id], batch) for behavior_id, batch in actions.items()
        }
        return await self._answer_of(await self.request_step(parts, self._changed_parameters()))

    async def _answer_of(self, message: Mapping[str, Any]) -> GameAnswer:
        """Read states until one has rows; return the rows, with the statistics of all these states."""
        statistics = []
        for _ in range(_MOST_EMPTY):
            try:
                state = read_state(message, self.specs)
            except MessageError as error:
                raise await self.refuse(str(error)) from None
            statistics.append({name: StatisticValues(values) for name, values in state.statistics.items()})
            if state.rows:
                self._deciding = {
                    behavior_id: columns.ids[columns.ended :] for behavior_id, columns in state.rows.items()
                }
                tracked = {
                    behavior_id: self._episodes.of(behavior_id, columns, self._generation)
                    for behavior_id, columns in state.rows.items()
                }
                return GameAnswer(tracked, merged_statistics(statistics))
            message = await self.request_step({}, self._changed_parameters())
        raise await self.refuse(
            f"sent {_MOST_EMPTY:,} states in a row in which no agent requested a decision or ended; an agent whose "
            "episode has ended must request a decision to begin the next one"
        )

    def _changed_parameters(self) -> Mapping[str, float] | None:
        """Return the environment parameters if they have changed since they were last sent, otherwise None."""
        if self._parameters is None or self._parameters.generation == self._generation:
            return None
        return self._current_parameters()

    def _current_parameters(self) -> Mapping[str, float] | None:
        if self._parameters is None:
            return None
        self._generation = self._parameters.generation
        return self._parameters.options(self._index)


# The group that the YAML describes.


def make_open_group(request: EnvironmentRequest) -> GameGroup:
    """Make the group that `environment` and `env_settings` describe; its first reset starts the games.

    Game n gets the run's seed + n. If the user starts a game, the run does not end with the game. The run continues
    when the user restarts the game.
    """
    config, settings, env = request.config, request.settings, request.config.env_settings
    assert isinstance(settings, OpenProtocolSettings), "the table of environment kinds names this model"
    transport = settings.transport

    def make(index: int, parameters: EpisodeParameters | None) -> OpenGame:
        worker_id = request.first_instance + index
        build = None
        if env.env_path is not None:
            folder = request.run_folder
            log_file = None if folder is None else folder.absolute() / RUN_LOGS / f"Game-{worker_id}.log"
            build = OpenBuild(env.env_path, env.env_args or (), log_file, config.debug)
        return OpenGame(game_settings(config, worker_id, request.seed), transport, build, index, parameters)

    return make_game_group(config, settings.num_envs, OpenGame, make)

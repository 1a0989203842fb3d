"""Makes a group of games that speak the open protocol, from the YAML, and converts each game's states to rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config import RunConfig
from headrace.config.environment import OpenProtocolSettings
from headrace.queues.messages import ActionBatch
from headrace.stages.activity import preparing
from headrace.stages.environments.factory import EnvironmentRequest
from headrace.stages.environments.open_protocol.columns import actions_part, read_state
from headrace.stages.environments.open_protocol.worker import GameProgram, OpenWorker
from headrace.stages.environments.parameters import EpisodeParameters
from headrace.stages.environments.programs.errors import MessageError
from headrace.stages.environments.programs.group import RUN_LOGS, ProgramGroup, make_program_group
from headrace.stages.environments.programs.program import Program, ProgramAnswer, merged_statistics
from headrace.stages.environments.programs.rows import InstanceRows, ProgramRows
from headrace.stages.environments.programs.worker import worker_settings
from headrace.stages.environments.protocol import Measured

log = logging.getLogger(__name__)

_MANY_EMPTY = 2_000
"""Number of consecutive states without a row after which a warning is logged."""
_MOST_EMPTY = 100_000
"""Number of consecutive states without a row after which a game counts as broken."""


def make_open_group(request: EnvironmentRequest) -> ProgramGroup:
    """Make the group that `environment` and `env_settings` describe; its first reset starts the games.

    Game n gets the run's seed + n. If the user starts a game, the run does not end with the game. The run continues
    when the user restarts the game.
    """

    def make(index: int, parameters: EpisodeParameters | None) -> OpenInstance:
        worker_id = request.first_instance + index
        return OpenInstance(worker_id, partial(_connect, request, worker_id), index, parameters)

    return make_program_group(request.config, request.settings.num_envs, make, waits_for_restart=True)


def check_game(config: RunConfig) -> None:
    """If a program is given, check before a run starts that it exists.

    Raises:
        ProgramRefused: if the program does not exist.
    """
    if config.env_settings.env_path is not None:
        GameProgram(config.env_settings.env_path).command(0, 0)


@preparing()
def _connect(request: EnvironmentRequest, worker_id: int, again: bool) -> OpenWorker:
    config, settings, env = request.config, request.settings, request.config.env_settings
    assert isinstance(settings, OpenProtocolSettings), "the table of environment kinds names this model"
    program = None
    if env.env_path is not None:
        folder = request.run_folder
        log_file = None if folder is None else folder.absolute() / RUN_LOGS / f"Game-{worker_id}.log"
        program = GameProgram(env.env_path, env.env_args or (), log_file, config.debug)
    return OpenWorker(worker_settings(config, worker_id, request.seed, again), settings.transport, program)


class OpenInstance(Program[OpenWorker]):
    """One game, which can be restarted after a failure.

    Args:
        worker_id: the game's number in the run, used in messages.
        connect: makes a connection, given whether there was an earlier connection.
        index: number of the game in its group.
        parameters: the environment parameters; None if the run has none.
    """

    def __init__(
        self, worker_id: int, connect: Callable[[bool], OpenWorker], index: int, parameters: EpisodeParameters | None
    ) -> None:
        super().__init__(f"Game {worker_id}")
        self._connect = connect
        self._index = index
        self._parameters = parameters
        self._generation = 0
        self._deciding: dict[str, NDArray[np.int32]] = {}
        """Ids of the agents that need decisions, keyed by behaviour id."""

    async def _start(self) -> None:
        self._connection = self._connect(self.connected)
        self.specs = (await self._connection.start()).specs

    async def _reset(self) -> ProgramAnswer:
        return await self._answer(await self.connection.reset(self._drawn() or {}))

    async def step(self, actions: Mapping[str, ActionBatch]) -> ProgramAnswer:
        """Let agents act, and wait for a state with at least one row. Raises the same errors as `Program.begin`."""
        parts = {
            behavior_id: actions_part(self._deciding[behavior_id], batch) for behavior_id, batch in actions.items()
        }
        return await self._answer(await self.connection.step(parts, self._changed()))

    async def _answer(self, message: Mapping[str, Any]) -> ProgramAnswer:
        statistics = []
        for empty in range(_MOST_EMPTY):
            if empty == _MANY_EMPTY:
                log.warning(
                    "%s sent %s states in a row in which no agent requested a decision or ended; an agent whose "
                    "episode has ended must request a decision to begin the next one",
                    *(self.name, f"{_MANY_EMPTY:,}"),
                )
            try:
                state = read_state(message, self.specs)
            except MessageError as error:
                raise await self.connection.refuse(str(error)) from None
            statistics.append({name: Measured(values) for name, values in state.statistics.items()})
            if state.rows:
                return ProgramAnswer(self._tracked(state.rows), merged_statistics(statistics))
            message = await self.connection.step({}, self._changed())
        raise await self.connection.refuse(
            f"sent {_MOST_EMPTY:,} states in a row without agents; a state must have agents that request a decision or "
            "have ended"
        )

    def _tracked(self, rows: Mapping[str, ProgramRows]) -> dict[str, InstanceRows]:
        self._deciding = {behavior_id: columns.ids[columns.ended :] for behavior_id, columns in rows.items()}
        return {
            behavior_id: self._episodes.of(behavior_id, columns, self._generation)
            for behavior_id, columns in rows.items()
        }

    def _changed(self) -> Mapping[str, float] | None:
        """Return the environment parameters if they have changed since they were last sent, otherwise None."""
        if self._parameters is None or self._parameters.generation == self._generation:
            return None
        return self._drawn()

    def _drawn(self) -> Mapping[str, float] | None:
        if self._parameters is None:
            return None
        self._generation = self._parameters.generation
        return self._parameters.options(self._index)

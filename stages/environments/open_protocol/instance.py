"""One game of the group: its connection, its behaviours, and its states as rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.open_protocol.announcement import Hello
from headrace.stages.environments.open_protocol.columns import actions_part
from headrace.stages.environments.open_protocol.states import read_state
from headrace.stages.environments.parameters import EpisodeParameters
from headrace.stages.environments.programs.episodes import EpisodeTracker
from headrace.stages.environments.programs.errors import MessageError, ProgramBroken
from headrace.stages.environments.programs.program import ProgramAnswer, close_quietly, merged_statistics
from headrace.stages.environments.programs.rows import InstanceRows, ProgramRows
from headrace.stages.environments.protocol import Measured

log = logging.getLogger(__name__)

_PATIENCE_S = 3.0
"""Time that a broken game may take to end before it is killed."""
_MANY_EMPTY = 2_000
"""States without a row, one after the other, after which a warning tells of them."""
_MOST_EMPTY = 100_000
"""States without a row, one after the other, after which a game is taken for broken."""


class OpenConnection(Protocol):
    """A connection with a game, as of `OpenWorker`; each call waits for an answer."""

    async def start(self) -> Hello:
        """Connect."""

    async def reset(self, parameters: Mapping[str, float]) -> dict[str, Any]:
        """Let all agents begin anew."""

    async def step(self, actions: Mapping[str, Any], parameters: Mapping[str, float] | None = None) -> dict[str, Any]:
        """Let agents act."""

    async def refuse(self, what: str) -> ProgramBroken:
        """End it for something that is wrong with its message."""

    async def close(self, patience_s: float | None = None) -> None:
        """End it in any state."""


class OpenInstance:
    """One game, which can be started again after it broke.

    Args:
        worker_id: counts the games of the run; names it in messages.
        connect: makes a connection, from whether there was one before.
        index: number of the game in its group.
        parameters: the environment parameters; None without any.
    """

    def __init__(
        self,
        worker_id: int,
        connect: Callable[[bool], OpenConnection],
        index: int = 0,
        parameters: EpisodeParameters | None = None,
    ) -> None:
        self.worker_id = worker_id
        self.connected = False
        self.specs: dict[str, BehaviorSpec] = {}
        self._connect = connect
        self._index = index
        self._parameters = parameters
        self._generation = 0
        self._connection: OpenConnection | None = None
        self._episodes: dict[str, EpisodeTracker] = {}
        self._deciding: dict[str, NDArray[np.int32]] = {}
        """Agents that have asked for decisions, by behaviour id."""

    @property
    def name(self) -> str:
        """Its name in log messages and errors."""
        return f"Game {self.worker_id}"

    async def begin(self) -> ProgramAnswer:
        """Connect or reconnect, and reset all agents; raises as `Program.begin`."""
        await self.close(_PATIENCE_S)
        self._connection = self._connect(self.connected)
        hello = await self._connection.start()
        self.specs = hello.specs
        for behavior_id in hello.specs:
            self._episodes.setdefault(behavior_id, EpisodeTracker())
        self.connected = True
        return await self.reset()

    async def reset(self) -> ProgramAnswer:
        """Reset all agents; raises as `Program.begin`."""
        assert self._connection is not None, "begin comes first"
        for episodes in self._episodes.values():
            episodes.clear()
        return await self._answer(await self._connection.reset(self._drawn() or {}))

    async def step(self, actions: Mapping[str, ActionBatch]) -> ProgramAnswer:
        """Let agents act, and wait for a state with at least one row; raises as `Program.begin`."""
        assert self._connection is not None, "begin comes first"
        parts = {
            behavior_id: actions_part(self._deciding[behavior_id], batch) for behavior_id, batch in actions.items()
        }
        return await self._answer(await self._connection.step(parts, self._changed()))

    async def close(self, patience_s: float | None = None) -> None:
        """End the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await close_quietly(connection, patience_s, self.name)

    async def _answer(self, message: Mapping[str, Any]) -> ProgramAnswer:
        assert self._connection is not None, "begin comes first"
        statistics = []
        for empty in range(_MOST_EMPTY):
            if empty == _MANY_EMPTY:
                log.warning(
                    "%s has sent %s states in which no agent asks for a decision or has ended, one after the other; an "
                    "agent whose episode has ended has to ask again to begin the next one",
                    *(self.name, f"{_MANY_EMPTY:,}"),
                )
            try:
                state = read_state(message, self.specs)
            except MessageError as error:
                raise await self._connection.refuse(str(error)) from None
            statistics.append({name: Measured(values) for name, values in state.statistics.items()})
            if state.rows:
                return ProgramAnswer(self._tracked(state.rows), merged_statistics(statistics))
            message = await self._connection.step({}, self._changed())
        raise await self._connection.refuse(
            f"has sent {_MOST_EMPTY:,} states without an agent, one after the other; a state has agents that ask for a "
            "decision or have ended"
        )

    def _tracked(self, rows: Mapping[str, ProgramRows]) -> dict[str, InstanceRows]:
        """The rows with the numbers of their agents' episodes."""
        self._deciding = {behavior_id: columns.ids[columns.ended :] for behavior_id, columns in rows.items()}
        return {
            behavior_id: InstanceRows(
                columns,
                self._episodes[behavior_id].track(columns.ids.astype(np.int64), columns.ended, self._generation),
            )
            for behavior_id, columns in rows.items()
        }

    def _changed(self) -> Mapping[str, float] | None:
        """The environment parameters, if they have changed since the game was told."""
        if self._parameters is None or self._parameters.generation == self._generation:
            return None
        return self._drawn()

    def _drawn(self) -> Mapping[str, float] | None:
        if self._parameters is None:
            return None
        self._generation = self._parameters.generation
        return self._parameters.options(self._index)

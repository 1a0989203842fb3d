"""The interface between a program group and its programs, and the parts that all engines' programs share."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from headrace.queues.messages import ActionBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.programs.rows import InstanceRows, ProgramEpisodes
from headrace.stages.environments.protocol import Measured

log = logging.getLogger(__name__)

_PATIENCE_S = 3.0
"""Seconds to wait for a broken program to exit before it is killed."""


@dataclass(frozen=True, slots=True)
class ProgramAnswer:
    """A program's answer, with at least one row."""

    rows: Mapping[str, InstanceRows]
    """The rows, keyed by behaviour id."""
    statistics: Mapping[str, Measured] = field(default_factory=dict)
    """Statistics of all behaviours."""
    behavior_statistics: Mapping[str, Mapping[str, Measured]] = field(default_factory=dict)
    """Statistics of individual behaviours, keyed by behaviour name."""

    @property
    def asks_for_decisions(self) -> bool:
        """True if any agent needs a decision."""
        return any(len(rows.columns) > rows.columns.ended for rows in self.rows.values())


class Closable(Protocol):
    """A connection to a program."""

    async def close(self, patience_s: float | None = None) -> None:
        """Close the connection in any state.

        A program that has not exited after `patience_s` (by default the time limit of an exchange) is killed.
        """


Connection = TypeVar("Connection", bound=Closable)


class Program(ABC, Generic[Connection]):
    """A program in which agents act; it can be restarted after a failure.

    Args:
        name: the program's name in log messages and errors.

    Attributes:
        connected: True once the program has connected.
        specs: the specs of the program's behaviours so far, keyed by behaviour id.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.connected = False
        self.specs: dict[str, BehaviorSpec] = {}
        self._connection: Connection | None = None
        self._episodes = ProgramEpisodes()

    @property
    def connection(self) -> Connection:
        """The connection; available once `begin` has been called."""
        assert self._connection is not None, "begin comes first"
        return self._connection

    async def begin(self) -> ProgramAnswer:
        """Start or restart the program, and reset all agents.

        Raises:
            ProgramBroken: if the program breaks; another attempt may help.
            ProgramRefused: if the program can't be used with its current setup.
            ProgramEnded: if the program ends normally.
        """
        await self.close(_PATIENCE_S)
        await self._start()
        self.connected = True
        return await self.reset()

    async def reset(self) -> ProgramAnswer:
        """Reset all agents. Raises the same errors as `begin`."""
        self._episodes.clear()
        return await self._reset()

    @abstractmethod
    async def step(self, actions: Mapping[str, ActionBatch]) -> ProgramAnswer:
        """Let the agents that needed decisions act, and wait for an answer. Raises the same errors as `begin`."""

    async def close(self, patience_s: float | None = None) -> None:
        """Close the connection, if there is one, like `Closable.close`; errors are only logged."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            await connection.close(patience_s)
        except Exception as error:  # a failing close must not leave the others open
            log.debug("%s: closing it failed: %s", self.name, error)

    @abstractmethod
    async def _start(self) -> None:
        """Make a connection and start it."""

    @abstractmethod
    async def _reset(self) -> ProgramAnswer:
        """Reset all agents. Raises the same errors as `begin`."""


def merged_statistics(statistics: Iterable[Mapping[str, Measured]]) -> dict[str, Measured]:
    """Merge several programs' statistics for one tick."""
    found: dict[str, Measured] = {}
    for one in statistics:
        for name, measured in one.items():
            before = found.get(name)
            found[name] = measured if before is None else Measured(before.values + measured.values, before.how)
    return found

"""What a program group needs of each of its programs, whatever the engine."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from headrace.queues.messages import ActionBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.programs.rows import InstanceRows
from headrace.stages.environments.protocol import Measured

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProgramAnswer:
    """An answer of a program, with at least one row."""

    rows: Mapping[str, InstanceRows]
    """By behaviour id."""
    statistics: Mapping[str, Measured] = field(default_factory=dict)
    """Of all behaviours."""
    behavior_statistics: Mapping[str, Mapping[str, Measured]] = field(default_factory=dict)
    """Of single behaviours, by behaviour name."""

    @property
    def asks_for_decisions(self) -> bool:
        """True if any agent asks for a decision."""
        return any(len(rows.columns) > rows.columns.ended for rows in self.rows.values())


class Program(Protocol):
    """A program that agents act in; it can be started again after it broke.

    Attributes:
        connected: true once it has been connected.
        specs: its behaviours so far, by behaviour id.
    """

    connected: bool
    specs: dict[str, BehaviorSpec]

    @property
    def name(self) -> str:
        """Its name in log messages and errors."""

    async def begin(self) -> ProgramAnswer:
        """Start it, or start it again, and reset all agents.

        Raises:
            ProgramBroken: if it breaks; another attempt may help.
            ProgramRefused: if it can't be used as it is set up.
            ProgramEnded: if it ends in order.
        """

    async def reset(self) -> ProgramAnswer:
        """Reset all agents; raises as `begin`."""

    async def step(self, actions: Mapping[str, ActionBatch]) -> ProgramAnswer:
        """Let the agents act that asked for decisions, and wait for an answer; raises as `begin`."""

    async def close(self, patience_s: float | None = None) -> None:
        """End it in any state; it is killed after `patience_s`, by default the time of an exchange."""


class Closable(Protocol):
    """A connection with a program."""

    async def close(self, patience_s: float | None = None) -> None:
        """End it in any state."""


async def close_quietly(connection: Closable, patience_s: float | None, name: str) -> None:
    """Close a connection that may be broken: one that can't even be closed must not hinder the others.

    Args:
        connection: with the program.
        patience_s: as of its `close`.
        name: of the program.
    """
    try:
        await connection.close(patience_s)
    except Exception as error:
        log.debug("%s: closing it failed: %s", name, error)


def merged_statistics(statistics: Iterable[Mapping[str, Measured]]) -> dict[str, Measured]:
    """The statistics of several programs in one tick."""
    found: dict[str, Measured] = {}
    for one in statistics:
        for name, measured in one.items():
            before = found.get(name)
            found[name] = measured if before is None else Measured(before.values + measured.values, before.how)
    return found

"""One Unity program of the group: its connection, its behaviours, and the conversion of its messages to columns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.queues.messages import ActionBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.programs.program import Program, ProgramAnswer, merged_statistics
from headrace.stages.environments.programs.rows import InstanceRows
from headrace.stages.environments.unity.actions import action_protos
from headrace.stages.environments.unity.columns import BehaviorReader
from headrace.stages.environments.unity.errors import UnityBroken
from headrace.stages.environments.unity.side_channels.standard import SideChannelBridge

log = logging.getLogger(__name__)


class Worker(Protocol):
    """A connection to a Unity program, such as `UnityWorker`; each call waits for an answer."""

    async def start(self) -> None:
        """Connect to Unity."""

    async def reset(self) -> Any:
        """Reset all agents; return a `UnityOutputProto`."""

    async def step(self, actions: Mapping[str, Any]) -> Any:
        """Let agents act; return a `UnityOutputProto`."""

    async def close(self, patience_s: float | None = None) -> None:
        """Close the connection in any state.

        If Unity has not exited after `patience_s` (by default the time limit of an exchange), it is killed.
        """


class UnityInstance(Program[Worker]):
    """One Unity program, which can be restarted after a failure.

    Args:
        worker_id: the program's number in the run, used in messages.
        connect: makes a connection and its side channels. It is called for each start.
        without_graphics: True if the program runs without graphics, in which case image observations cause a warning.
    """

    def __init__(
        self, worker_id: int, connect: Callable[[], tuple[Worker, SideChannelBridge]], without_graphics: bool = False
    ) -> None:
        super().__init__(f"Unity worker {worker_id}")
        self._connect = connect
        self._without_graphics = without_graphics
        self._bridge: SideChannelBridge | None = None
        self._brains: dict[str, Any] = {}
        self._readers: dict[str, BehaviorReader] = {}

    async def _start(self) -> None:
        self._connection, self._bridge = self._connect()
        self._brains, self._readers = {}, {}
        await self._connection.start()

    async def _reset(self) -> ProgramAnswer:
        return await self._answer(await self._updated_worker().reset())

    async def step(self, actions: Mapping[str, ActionBatch]) -> ProgramAnswer:
        """Let agents act, and wait for an answer with at least one row. Raises the same errors as `begin`."""
        protos = {
            behavior_id: action_protos(self.specs[behavior_id], batch.continuous, batch.discrete)
            for behavior_id, batch in actions.items()
        }
        return await self._answer(await self._updated_worker().step(protos))

    def _updated_worker(self) -> Worker:
        assert self._bridge is not None
        self._bridge.update()
        return self.connection

    async def _answer(self, output: Any) -> ProgramAnswer:
        assert self._bridge is not None
        rows, statistics = self._read(output), [self._bridge.statistics()]
        while not rows:
            output = await self._updated_worker().step({})
            rows = self._read(output)
            statistics.append(self._bridge.statistics())
        return ProgramAnswer(rows, statistics[0] if len(statistics) == 1 else merged_statistics(statistics))

    def _read(self, output: Any) -> dict[str, InstanceRows]:
        for brain in output.rl_initialization_output.brain_parameters:
            self._brains[brain.brain_name] = brain
        by_behavior = output.rl_output.agentInfos
        rows = {}
        for behavior_id in sorted(by_behavior):  # the map in a message is unordered
            infos = by_behavior[behavior_id].value
            if infos:
                rows[behavior_id] = self._rows(behavior_id, infos)
        return rows

    def _rows(self, behavior_id: str, infos: Any) -> InstanceRows:
        assert self._bridge is not None
        reader = self._readers.get(behavior_id)
        if reader is None:
            reader = self._readers[behavior_id] = self._new_reader(behavior_id, infos[0])
        return self._episodes.of(behavior_id, reader.read(infos), self._bridge.generation)

    def _new_reader(self, behavior_id: str, first: Any) -> BehaviorReader:
        brain = self._brains.get(behavior_id)
        if brain is None:
            known = ", ".join(sorted(self._brains)) or "none"
            raise UnityBroken(
                f"{self.name} sends agents of a behaviour {behavior_id!r} that it has not announced (announced: "
                f"{known}); check that its package com.unity.ml-agents is complete, with all files from the same "
                "version"
            )
        reader = BehaviorReader(brain, first, self.name)
        if self._without_graphics and behavior_id not in self.specs:
            self._warn_of_black_images(reader.spec)
        self.specs[behavior_id] = reader.spec
        return reader

    def _warn_of_black_images(self, spec: BehaviorSpec) -> None:
        pictures = [observation.name for observation in spec.observations if OBSERVATION_KINDS[observation.kind].pixels]
        if pictures:
            log.warning(
                "%s, behaviour %r, observes images (%s), and without graphics, Unity's cameras render only black. "
                "Unless the images come from other sensors, leave --no-graphics out; without a display, run the "
                "command with xvfb-run",
                *(self.name, spec.behavior_id, ", ".join(pictures)),
            )

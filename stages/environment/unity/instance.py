"""One Unity of the group: a connection, the behaviours it announced, and what its messages say in columns."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from queues.specs import BehaviorSpec
from stages.environment.protocol import Measured
from stages.environment.unity.episodes import Episodes
from stages.environment.unity.rows import AgentRows
from stages.environment.unity.side_channel_bridge import Telling, joined
from stages.unity.columns import BehaviorReader
from stages.unity.errors import UnityBroken

log = logging.getLogger(__name__)

_PATIENCE_S = 3.0
"""How long one that broke may take to end before it is killed."""


class Worker(Protocol):
    """A connection with a Unity, such as `stages.unity.worker.UnityWorker`; each call waits for Unity's answer."""

    async def start(self) -> None:
        """Connect."""

    async def reset(self) -> Any:
        """Let all agents begin anew; a `UnityOutputProto`."""

    async def step(self, actions: Mapping[str, Any]) -> Any:
        """Let agents act; a `UnityOutputProto`."""

    async def close(self, patience_s: float | None = None) -> None:
        """End it, whatever state it is in; killed if it takes longer than this, None for as long as an exchange may."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a Unity answered: there is at least one row."""

    rows: Mapping[str, AgentRows]
    """By behaviour id."""
    statistics: Mapping[str, Measured] = field(default_factory=dict)

    @property
    def decides(self) -> bool:
        """Whether it asks for any decision."""
        return any(len(rows.said) > rows.said.ended for rows in self.rows.values())


class UnityInstance:
    """One Unity, which may be connected anew after it broke.

    Args:
        worker_id: counts the Unity programs of the run; names it in messages.
        connect: makes a connection and what is told over it; called for each start.
        blind: whether to warn of pictures, as it is started without graphics.
    """

    def __init__(self, worker_id: int, connect: Callable[[], tuple[Worker, Telling]], blind: bool = False) -> None:
        self.worker_id = worker_id
        self.connected = False
        """Whether it was ever heard of."""
        self.specs: dict[str, BehaviorSpec] = {}
        """The behaviours that it has announced, by behaviour id."""
        self._connect = connect
        self._blind = blind
        self._worker: Worker | None = None
        self._telling: Telling | None = None
        self._brains: dict[str, Any] = {}
        self._readers: dict[str, BehaviorReader] = {}
        self._episodes: dict[str, Episodes] = {}

    @property
    def where(self) -> str:
        """Names it in messages to people."""
        return f"Unity worker {self.worker_id}"

    async def begin(self) -> Answer:
        """Connect, anew if it was connected before, and let all agents begin.

        Raises:
            UnityBroken: if it breaks meanwhile; another attempt may help.
            UnityRefused: if it can't be used as it is set up.
            UnityEnded: if it ends in order.
        """
        await self.close(patience_s=_PATIENCE_S)
        self._worker, self._telling = self._connect()
        self._brains, self._readers = {}, {}
        await self._worker.start()
        self.connected = True
        return await self.reset()

    async def reset(self) -> Answer:
        """Let all agents begin anew; raises as `begin`."""
        for episodes in self._episodes.values():
            episodes.begin_anew()
        worker = self._told()
        return await self._answer(await worker.reset())

    async def step(self, actions: Mapping[str, Any]) -> Answer:
        """Let agents act, and go on until it says anything of any agent; raises as `begin`.

        Args:
            actions: `ListAgentActionProto` by behaviour id.
        """
        worker = self._told()
        return await self._answer(await worker.step(actions))

    async def close(self, patience_s: float | None = None) -> None:
        """End the connection, if there is one; see `Worker.close`."""
        worker, self._worker = self._worker, None
        if worker is not None:
            try:
                await worker.close(patience_s)
            except Exception as error:  # what is broken may not even close: that must not hinder the others
                log.debug("%s: closing it failed: %s", self.where, error)

    def _told(self) -> Worker:
        assert self._worker is not None, "begin comes first"
        assert self._telling is not None
        self._telling.update()
        return self._worker

    async def _answer(self, output: Any) -> Answer:
        assert self._telling is not None
        rows, heard = self._read(output), [self._telling.heard()]
        while not rows:
            output = await self._told().step({})
            rows = self._read(output)
            heard.append(self._telling.heard())
        return Answer(rows, heard[0] if len(heard) == 1 else joined(heard))

    def _read(self, output: Any) -> dict[str, AgentRows]:
        """What a message says, by behaviour id; without behaviours that it says nothing of."""
        for brain in output.rl_initialization_output.brain_parameters:
            self._brains[brain.brain_name] = brain
        said = output.rl_output.agentInfos
        rows = {}
        for behavior_id in sorted(said):  # the map of a message has no order of its own
            infos = said[behavior_id].value
            if infos:
                rows[behavior_id] = self._rows(behavior_id, infos)
        return rows

    def _rows(self, behavior_id: str, infos: Any) -> AgentRows:
        assert self._telling is not None
        reader = self._readers.get(behavior_id)
        if reader is None:
            reader = self._readers[behavior_id] = self._new_reader(behavior_id, infos[0])
        said = reader.read(infos)
        episodes = self._episodes.get(behavior_id)
        if episodes is None:
            episodes = self._episodes[behavior_id] = Episodes()
        return AgentRows(said, episodes.enter(said.ids.astype(np.int64), said.ended, self._telling.generation))

    def _new_reader(self, behavior_id: str, first: Any) -> BehaviorReader:
        brain = self._brains.get(behavior_id)
        if brain is None:
            known = ", ".join(sorted(self._brains)) or "none"
            raise UnityBroken(
                f"{self.where} sends agents of a behaviour {behavior_id!r} that it has never announced (announced: "
                f"{known}); is its package com.unity.ml-agents whole, and of one version?"
            )
        reader = BehaviorReader(brain, first, self.where)
        if self._blind and behavior_id not in self.specs:
            self._warn_of_darkness(reader.spec)
        self.specs[behavior_id] = reader.spec
        return reader

    def _warn_of_darkness(self, spec: BehaviorSpec) -> None:
        pictures = [observation.name for observation in spec.observations if observation.kind == "image"]
        if pictures:
            log.warning(
                "%s, behaviour %r, observes pictures (%s), and without graphics Unity's cameras see nothing but black. "
                "Unless they are no cameras' (but grids, say), leave --no-graphics out; where there is no display, "
                "xvfb-run before the command makes one",
                *(self.where, spec.behavior_id, ", ".join(pictures)),
            )

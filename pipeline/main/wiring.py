"""Joins hosts with queues: makes both ends of each and tells the hosts where they are.

How two hosts are joined depends on where they run (see `edges`); nothing else in the pipeline has to know.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from config import RunConfig
from pipeline.control.messages import OpenEdge
from pipeline.hosts.edges import (
    HostLinks,
    LocalEdges,
    open_receiver,
    open_sender,
    policy_link,
    trajectory_link,
)
from pipeline.hosts.handle import HostHandle
from queues.agent_manager_queue import AgentManagerQueue
from queues.ends import Inlet, Outlet
from queues.links import LinkEnd

SPARE_BEHAVIORS = 4
"""Behaviours beyond the listed ones that an environment may turn out to have."""
TEAMS = 4
"""Behaviour ids reckoned with per behaviour name."""


@dataclass
class ActorSlot:
    """One actor and its place in the graph; a replacement takes the same place."""

    replica: int
    handle: HostHandle
    source: int
    trajectory_tickets: dict[str, str] = field(default_factory=dict)
    """Of a process actor: by behaviour name, which of its links is the trajectory queue."""
    policies: dict[str, Outlet[Any]] = field(default_factory=dict)
    """By behaviour id: main's end of the actor's policy queue."""


class Wiring:
    """Makes the queues of a run.

    Args:
        config: the run's configuration.
        local: where ends for hosts in main's event loop are put down.
    """

    def __init__(self, config: RunConfig, local: LocalEdges) -> None:
        self._config = config
        self._local = local
        self._maxlen = config.pipeline.queues.trajectories.maxlen
        self._slab_bytes = config.pipeline.queues.slab_bytes

    def actor_links(self, keep: HostLinks | None = None) -> HostLinks:
        """Links for an actor process; with `keep`, for one that replaces a dead one and puts into the same queues."""
        names = len(self._config.behaviors) + SPARE_BEHAVIORS
        outgoing = trajectory_link(self._maxlen, self._slab_bytes)
        links = HostLinks.make(outgoing, 0 if keep else names, policy_link(self._slab_bytes), names * TEAMS)
        if keep is not None:
            links.born_with |= {name: end for name, end in keep.born_with.items() if name.startswith("out")}
            links.peers |= {name: end for name, end in keep.peers.items() if name.startswith("out")}
        return links

    def learner_links(self) -> HostLinks:
        """Links for a learner process: policies out, trajectories in where they come from main."""
        return HostLinks.make(policy_link(self._slab_bytes), 1, trajectory_link(self._maxlen, self._slab_bytes), 1)

    def evaluation_links(self) -> HostLinks:
        """Links for an evaluation process."""
        names = len(self._config.behaviors) + SPARE_BEHAVIORS
        return HostLinks.make(policy_link(self._slab_bytes), 0, policy_link(self._slab_bytes), names * TEAMS)

    async def gather(self, behavior: str, slots: list[ActorSlot]) -> Inlet[Any]:
        """Main's end of the queue into which all actors put a behaviour's trajectories."""
        name = f"trajectories/{behavior}"
        if slots[0].handle.links is None:
            return self._join_locally(name, slots)
        return await open_receiver(name, self._take_trajectory_ends(behavior, slots))

    async def connect_actors(self, behavior: str, slots: list[ActorSlot], learner: HostLinks | None) -> Any:
        """The queue from all actors straight to the learner; returns what to tell the learner as its inlet's address.

        Args:
            behavior: the behaviour name.
            slots: the actors.
            learner: the learner's links, before its birth; None where it shares main's event loop.
        """
        name = f"trajectories/{behavior}"
        if slots[0].handle.links is None:
            return self._local.put_down(self._join_locally(name, slots))
        ends = self._take_trajectory_ends(behavior, slots)
        if learner is None:
            return self._local.put_down(await open_receiver(name, ends))
        tickets = [f"actor-{slot.replica}" for slot in slots]
        learner.born_with |= dict(zip(tickets, ends, strict=True))
        return {"links": tickets}

    def tell_trajectories(self, behavior: str, slot: ActorSlot) -> None:
        """Tell a process actor which link is a behaviour's trajectory queue."""
        if slot.handle.links is not None:
            address = {"links": [slot.trajectory_tickets[behavior]]}
            slot.handle.control.send(OpenEdge(f"trajectories/{behavior}", address))

    async def feed(self, behavior: str, learner: HostHandle) -> Outlet[Any]:
        """Main's end of the queue from main to the learner."""
        return await self._into(learner, AgentManagerQueue(f"learn/{behavior}", self._maxlen))

    async def updates(self, behavior: str, learner: HostHandle) -> Inlet[Any]:
        """Main's end of the queue on which the trainer's policies come."""
        name = f"updates/{behavior}"
        if learner.links is None:
            queue: AgentManagerQueue[Any] = AgentManagerQueue(name, 1, "replace_oldest")
            learner.control.send(OpenEdge(name, self._local.put_down(queue)))
            return queue
        ticket, end = learner.links.take("out")
        inlet = await open_receiver(name, [end])
        learner.control.send(OpenEdge(name, {"links": [ticket]}))
        return inlet

    async def policies(self, behavior_id: str, host: HostHandle) -> Outlet[Any]:
        """Main's end of a policy queue to an actor or the evaluation host."""
        return await self._into(host, AgentManagerQueue(f"policies/{behavior_id}", 1, "replace_oldest"))

    async def _into(self, host: HostHandle, queue: AgentManagerQueue[Any]) -> Outlet[Any]:
        """Main's end of a queue to a host: this one where both share an event loop, else a link of the same name."""
        if host.links is None:
            host.control.send(OpenEdge(queue.name, self._local.put_down(queue)))
            return queue
        ticket, end = host.links.take("in")
        host.control.send(OpenEdge(queue.name, {"links": [ticket]}))
        return await open_sender(queue.name, end)

    def _join_locally(self, name: str, slots: list[ActorSlot]) -> AgentManagerQueue[Any]:
        queue: AgentManagerQueue[Any] = AgentManagerQueue(name, self._maxlen)
        ends = [queue.add_producer() for _ in slots]  # all of them before the first one can close
        for slot, end in zip(slots, ends, strict=True):
            slot.handle.control.send(OpenEdge(name, self._local.put_down(end)))
        return queue

    def _take_trajectory_ends(self, behavior: str, slots: list[ActorSlot]) -> list[LinkEnd]:
        ends = []
        for slot in slots:
            assert slot.handle.links is not None, "all actors are of one kind"
            slot.trajectory_tickets[behavior], end = slot.handle.links.take("out")
            ends.append(end)
        return ends

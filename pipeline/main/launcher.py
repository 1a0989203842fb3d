"""Starts hosts and joins them: actors first, a learner as soon as its behaviour is seen, evaluation beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from pipeline.common.graph import learner_name
from pipeline.control.messages import OpenEdge
from pipeline.hosts.edges import HostLinks, LocalEdges
from pipeline.hosts.handle import HostHandle
from pipeline.hosts.plan import HostPlan, HostRole
from pipeline.main.behavior import BehaviorState
from pipeline.main.run_plan import RunPlan
from pipeline.main.running_hosts import RunningHosts
from pipeline.main.wiring import ActorSlot, Wiring
from queues.ends import Inlet, Outlet

Runner = Coroutine[Any, Any, None]


class Launcher:
    """Knows what a host is told at its birth and which queues it needs.

    Args:
        plan: the run.
        running: where hosts are started.
        local: where ends of queues are put down for hosts within main's event loop.
        on_start: called with each host that was started, to listen to it.
    """

    def __init__(
        self, plan: RunPlan, running: RunningHosts, local: LocalEdges, on_start: Callable[[HostHandle], None]
    ) -> None:
        self._run = plan
        self._hosts = plan.config.pipeline.hosts
        self._running = running
        self._wiring = Wiring(plan.config, local)
        self._on_start = on_start
        self._sources = 0
        self.actors: dict[int, ActorSlot] = {}
        """By replica."""
        self.evaluation: ActorSlot | None = None
        self._evaluation_joins = asyncio.Lock()
        self.ends: dict[str, Inlet[Any] | Outlet[Any]] = {}
        """Main's ends of queues, by name."""

    def slot_of(self, host: HostHandle) -> ActorSlot | None:
        """The actor's place that a host has; None if it has none, or has lost it to a replacement."""
        return next((slot for slot in self.actors.values() if slot.handle is host), None)

    def sources(self) -> list[HostHandle]:
        """The hosts that produce experience."""
        return [slot.handle for slot in self.actors.values()]

    async def start_actor(self, replica: int, name: str, old: ActorSlot | None = None) -> ActorSlot:
        """Start an actor, in place of a dead one where `old` is given."""
        source, self._sources = self._sources, self._sources + 1
        edge = self._run.replay_edge
        plan = replace(
            self._plan("replay" if edge else "actor", name), replica=replica, source=source, replay_edge=edge
        )
        links = None
        if self._hosts.actors.kind == "process":
            links = self._wiring.actor_links(old.handle.links if old is not None else None)
        slot = ActorSlot(replica, await self._start(plan, links), source)
        if old is not None:
            slot.trajectory_tickets = old.trajectory_tickets
        self.actors[replica] = slot
        for behavior in slot.trajectory_tickets:
            self._wiring.tell_trajectories(behavior, slot)
        return slot

    async def start_learner(self, state: BehaviorState, through_main: bool) -> list[Runner]:
        """Start a behaviour's learner and join it to the actors; returns what main has to run on the way."""
        behavior = state.behavior
        slots = list(self.actors.values())
        links = self._learner_links()
        address = None if through_main else await self._wiring.connect_actors(behavior, slots, links)
        host, runners = await self._start_trainer(state, links)
        if address is not None:
            host.control.send(OpenEdge(f"trajectories/{behavior}", address))
        else:
            inlet = self.ends[f"trajectories/{behavior}"] = await self._wiring.gather(behavior, slots)
            outlet = self.ends[f"learn/{behavior}"] = await self._wiring.feed(behavior, host)
            runners += state.path.trajectories(inlet, outlet)
        self._tell_actors(behavior)
        return runners

    async def start_student(self, state: BehaviorState) -> list[Runner]:
        """Start a learner that imitates another behaviour: main feeds it, no actor does."""
        host, runners = await self._start_trainer(state, self._learner_links())
        self.ends[f"learn/{state.behavior}"] = await self._wiring.feed(state.behavior, host)
        return runners

    def feed_of(self, behavior: str) -> Outlet[Any]:
        """Main's end of the queue that feeds a behaviour's learner."""
        return self.ends[f"learn/{behavior}"]  # type: ignore[return-value]

    async def gather(self, behavior: str) -> Inlet[Any]:
        """Main's end of the queue into which all actors put a behaviour's trajectories, where no learner takes them."""
        inlet = self.ends[f"trajectories/{behavior}"] = await self._wiring.gather(behavior, list(self.actors.values()))
        self._tell_actors(behavior)
        return inlet

    async def open_policies(self, slot: ActorSlot, behavior_id: str) -> None:
        """Open an actor's policy queue for a behaviour id."""
        outlet = await self._wiring.policies(behavior_id, slot.handle)
        slot.policies[behavior_id] = self.ends[f"policies/{behavior_id} {slot.handle.plan.name}"] = outlet

    async def join_evaluation(self, behavior_id: str) -> ActorSlot | None:
        """Let a behaviour id be evaluated, in a host of its own; None if it is already."""
        async with self._evaluation_joins:  # each actor announces the behaviour id, maybe while it is being joined
            if self.evaluation is None:
                links = None if self._hosts.actors.kind == "inline" else self._wiring.evaluation_links()
                self.evaluation = ActorSlot(0, await self._start(self._plan("evaluation", "evaluation"), links), -1)
            if behavior_id in self.evaluation.policies:
                return None
            self.evaluation.policies[behavior_id] = await self._wiring.policies(behavior_id, self.evaluation.handle)
            return self.evaluation

    def end_evaluation(self) -> None:
        """No policies will come any more."""
        if self.evaluation is not None:
            for outlet in self.evaluation.policies.values():
                outlet.close()

    def close_ends(self) -> None:
        """The hosts have ended: main's stages need not wait for what those that failed have left open."""
        for end in self.ends.values():
            end.close()

    def _tell_actors(self, behavior: str) -> None:
        for slot in self.actors.values():
            self._wiring.tell_trajectories(behavior, slot)

    def _learner_links(self) -> HostLinks | None:
        return self._wiring.learner_links() if self._hosts.learners.kind == "process" else None

    async def _start_trainer(self, state: BehaviorState, links: HostLinks | None) -> tuple[HostHandle, list[Runner]]:
        """A learner that nobody feeds yet, and what brings its policies through main."""
        behavior = state.behavior
        plan = replace(self._plan("learner", learner_name(behavior)), behavior=behavior, spec=state.spec.to_plain())
        state.learner = host = await self._start(plan, links)
        updates = self.ends[f"updates/{behavior}"] = await self._wiring.updates(behavior, host)
        return host, state.path.policies(updates)

    async def _start(self, plan: HostPlan, links: HostLinks | None) -> HostHandle:
        host = await self._running.start(plan, links)
        self._on_start(host)
        return host

    def _plan(self, role: HostRole, name: str) -> HostPlan:
        config, folder, resumed = self._run.config, self._run.folder.path, self._run.resumed
        return HostPlan(
            role=role,
            name=name,
            config=config.to_plain(),
            config_path=str(config.path) if config.path is not None else None,
            run_folder=str(folder.resolve()),
            run_id=folder.name,
            seed=self._run.seed,
            resume=resumed is not None and not self._run.playing,
            resumed_at=resumed.number if resumed is not None else -1,
        )

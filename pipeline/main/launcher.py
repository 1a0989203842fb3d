"""A run's hosts: starts, connects and finds them, sends messages to actors, and leaves no host behind.

`Launcher` first starts actors, then each learner when its behaviour appears, and parts' own hosts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from headrace.config import RunConfig
from headrace.config.host_kinds import HOST_KINDS
from headrace.pipeline.common.graph import actor_learners, learner_name
from headrace.pipeline.common.process import ProcessUsage
from headrace.pipeline.common.run_parts import host_role
from headrace.pipeline.control import ControlMessage, Grant
from headrace.pipeline.hosts.protocol import Feed, HostFactory, HostHandle, HostPlan
from headrace.pipeline.main.behavior import BehaviorState
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.roles.stages import Runner
from headrace.queues.ends import Receiver, Sender
from headrace.queues.errors import QueueClosed
from headrace.queues.messages import PolicyUpdate
from headrace.queues.specs import BehaviorSpec
from headrace.stages.loading import load_attribute
from headrace.stages.publisher import PolicyPublisher, PublisherPort

log = logging.getLogger(__name__)


class RunningHosts:
    """All hosts that a run has started, including those that have ended. A replacement takes the dead host's name.

    Args:
        config: the run's configuration.
        tasks: the group that owns the tasks of hosts in main's event loop.
        on_start: called with each started host, to which the function must listen.
    """

    def __init__(self, config: RunConfig, tasks: asyncio.TaskGroup, on_start: Callable[[HostHandle], None]) -> None:
        self._config = config
        self._tasks = tasks
        self._on_start = on_start
        self._factories: dict[str, HostFactory] = {}
        self.hosts: dict[str, HostHandle] = {}
        """All hosts that have not been replaced, including those that have ended."""
        self.usage: dict[str, ProcessUsage] = {}
        """CPU time and memory that the hosts last reported for their processes."""
        self.ended: set[str] = set()
        """Names of the hosts that have ended without a replacement."""
        self.killed: set[str] = set()
        """Names of the hosts that were killed because they did not end by themselves."""
        self.dismissed: set[str] = set()
        """Names of the hosts that main ended, so that no last message is expected."""
        self.reasons: dict[str, str] = {}
        """Reasons why hosts that are not at fault were ended, keyed by host name."""
        self._all_ended = asyncio.Event()

    def factory(self, kind: str) -> HostFactory:
        """Return the factory for a kind of host."""
        if kind not in self._factories:
            factory = load_attribute(HOST_KINDS[kind].implementation, None, "host kind")
            self._factories[kind] = factory(self._config, self._tasks)
        return self._factories[kind]

    async def start(
        self, kind: str, plan: HostPlan, feed: Feed | None = None, replaces: HostHandle | None = None
    ) -> HostHandle:
        """Start a host; the arguments are those of `HostFactory.start`."""
        host = self.hosts[plan.name] = await self.factory(kind).start(plan, feed, replaces)
        for names in (self.ended, self.killed, self.dismissed):
            names.discard(plan.name)
        if replaces is not None:
            replaces.close()
        self._on_start(host)
        return host

    def current(self, host: HostHandle) -> bool:
        """Return True if a host has not been replaced by another with the same name."""
        return self.hosts.get(host.plan.name) is host

    def mark_ended(self, name: str) -> None:
        """Record that a host has ended without a replacement, and release everything that main holds for it."""
        self.ended.add(name)
        if name in self.hosts:
            self.hosts[name].close()
        if not self.unended:
            self._all_ended.set()

    async def wait_all(self) -> None:
        """Wait until every host has ended."""
        if not self.hosts:  # the first host failed to start
            self._all_ended.set()
        await self._all_ended.wait()

    @property
    def unended(self) -> set[str]:
        """Names of the hosts that have not ended."""
        return self.hosts.keys() - self.ended

    def end(self, host: HostHandle, why: str) -> None:
        """End a host that is not itself at fault, so that a new one can replace it."""
        self.reasons[host.plan.name] = why
        host.kill()

    def kill(self, names: Iterable[str], waited_s: float) -> None:
        """Kill these hosts, except those that have already ended."""
        left = sorted(self.unended.intersection(names) - self.killed)
        self.killed.update(left)
        if left:
            them = "it" if len(left) == 1 else "them"
            log.warning("%s did not end within %.0f s; killing %s.", ", ".join(left), waited_s, them)
        for name in left:
            self.hosts[name].kill()

    def until_all_ended(self, check: Callable[[], None], every_s: float) -> None:
        """Call `check` every `every_s` seconds until all hosts have ended."""
        self._tasks.create_task(self._check_until(check, every_s))

    async def _check_until(self, check: Callable[[], None], every_s: float) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await self._all_ended.wait()
                    return
            check()

    def dismiss_all(self, seconds: float) -> None:
        """End all hosts, even busy ones, with the processes they started; kill those that remain after `seconds`."""
        for name in self.unended:
            self.dismissed.add(name)
            self.hosts[name].control.close()
        if not self.hosts:
            self._all_ended.set()
        self.until_all_ended(lambda: self.kill(self.unended, seconds), seconds)

    def close(self) -> None:
        """Kill all hosts and release everything that connected main to them."""
        for host in self.hosts.values():
            host.kill()
        for host in self.hosts.values():
            host.close()

    def close_factories(self) -> None:
        """Release the host factories' resources, after all hosts and their connections to main are closed."""
        for factory in self._factories.values():
            factory.close()


@dataclass
class ActorSlot:
    """One actor's slot in the graph, which the actor's replacement takes over."""

    replica: int
    handle: HostHandle
    source: int
    former: list[int] = field(default_factory=list)
    """The actor's earlier source ids; the actor receives a new id whenever a learner is replaced."""
    policies: dict[str, Sender[Any]] = field(default_factory=dict)
    """Main's ends of the actor's policy queues, keyed by behaviour id."""


class Launcher:
    """Starts hosts from their plans, and opens main's ends of the queues that connect them.

    Args:
        plan: the run.
        running: starts hosts and keeps track of them.
        beside_learner: starts a learner's companion hosts, and returns the runners that main needs for them.
    """

    def __init__(
        self,
        plan: RunPlan,
        running: RunningHosts,
        beside_learner: Callable[[BehaviorState, HostHandle], Awaitable[list[Runner]]],
    ) -> None:
        self._beside_learner = beside_learner
        self._run = plan
        self._hosts = plan.config.pipeline.hosts
        self._actor_learners = actor_learners(plan.config)
        self._running = running
        self._sources = 0
        self._starting = asyncio.Lock()
        """Lock held while a learner starts and connects. A learner that dies during this time is replaced afterwards.
        """
        self.actors: dict[int, ActorSlot] = {}
        """Actor slots, keyed by replica number."""
        self.ends: dict[str, Receiver[Any] | Sender[Any]] = {}
        """Main's ends of queues, keyed by queue name."""

    def slot_of(self, host: HostHandle) -> ActorSlot | None:
        """Return a host's slot; None if the host is not an actor or was replaced."""
        return next((slot for slot in self.actors.values() if slot.handle is host), None)

    async def start_actor(self, replica: int, name: str, old: ActorSlot | None = None) -> ActorSlot:
        """Start an actor; `old` is the slot of the dead actor that it replaces, if any."""
        source, self._sources = self._sources, self._sources + 1
        edge = self._run.replay_edge
        plan = replace(
            self._run.host_plan("replay" if edge else "actor", name), replica=replica, source=source, replay_edge=edge
        )
        host = await self._running.start(
            self._hosts.actors.kind, plan, replaces=old.handle if old is not None else None
        )
        if old is not None:
            for sender in old.policies.values():
                sender.close()
        slot = self.actors[replica] = ActorSlot(replica, host, source)
        return slot

    async def start_learner(self, state: BehaviorState, through_main: bool, imitates: bool = False) -> list[Runner]:
        """Start a behaviour's learner and connect it to the actors; return the runners that main needs.

        Args:
            state: the behaviour.
            through_main: True if its trajectories pass through main.
            imitates: True if it imitates another behaviour; main then feeds it with that behaviour's trajectories.
        """
        behavior = state.behavior
        async with self._starting:
            if not (through_main or imitates):
                _, runners = await self._start_trainer(state, self._gather(behavior))
                return runners
            host, runners = await self._start_trainer(state)
            sender = self.ends[f"learn/{behavior}"] = await host.sender(f"learn/{behavior}")
            if imitates:
                return runners
            return [*runners, *state.path.trajectories(await self.gather(behavior), sender)]

    async def replace_learner(self, state: BehaviorState, resume: bool) -> None:
        """Start a learner that replaces a lost one; the queues and main's runners remain in use."""
        lost = state.learner
        assert lost is not None, "it was there to be lost"
        version = max(state.version, state.sent) + 1  # one policy may be in transit
        plan = replace(lost.plan, resume=resume, lost_version=version)
        async with self._starting:
            state.learner = await self._running.start(self._hosts.learners.kind, plan, replaces=lost)

    def assign_source(self, slot: ActorSlot) -> int:
        """Give an actor a new source id, which it uses from now on, and return that id."""
        slot.former.append(slot.source)
        slot.source, self._sources = self._sources, self._sources + 1
        return slot.source

    async def gather(self, behavior: str) -> Receiver[Any]:
        """Open main's end of the queue that receives a behaviour's trajectories from all actors."""
        receiver = self.ends[f"trajectories/{behavior}"] = await self._gather(behavior).open()
        return receiver

    async def open_policies(self, slot: ActorSlot, behavior_id: str) -> None:
        """Open an actor's policy queue for a behaviour id."""
        sender = await slot.handle.sender(f"policies/{behavior_id}", newest=True)
        slot.policies[behavior_id] = self.ends[f"policies/{behavior_id} {slot.handle.plan.name}"] = sender

    async def start(self, role: str, name: str, replaces: HostHandle | None = None, **fields: Any) -> HostHandle:
        """Start a host that belongs to a part of the run.

        Args:
            role: the host's role.
            name: the host's name.
            replaces: the dead host that it replaces; None if it is new.
            fields: additional fields for the host's plan.
        """
        kind = getattr(self._hosts, host_role(role).placed_as).kind
        return await self._running.start(kind, replace(self._run.host_plan(role, name), **fields), replaces=replaces)

    def _gather(self, behavior: str) -> Feed:
        # Actors of other learners in the league have no agents for this one; their barriers would arrive too early.
        strangers = {replica for replica, learner in enumerate(self._actor_learners) if learner != behavior}
        actors = [slot.handle for replica, slot in self.actors.items() if replica not in strangers]
        return self._running.factory(self._hosts.actors.kind).gather(f"trajectories/{behavior}", actors)

    async def _start_trainer(self, state: BehaviorState, feed: Feed | None = None) -> tuple[HostHandle, list[Runner]]:
        """Start a learner; return it, and the runners that carry its policies through main."""
        behavior = state.behavior
        plan = replace(
            self._run.host_plan("learner", learner_name(behavior)),
            behavior=behavior,
            spec=state.spec.to_plain(),
            explicit=self._run.set_by_command(behavior),
        )
        state.learner = host = await self._running.start(self._hosts.learners.kind, plan, feed)
        updates = self.ends[f"updates/{behavior}"] = await host.receiver(f"updates/{behavior}")
        return host, [*state.path.policies(updates), *await self._beside_learner(state, host)]


class PolicyRelay(Protocol):
    """A host that receives policies in place of the actors."""

    async def add_behavior(self, spec: BehaviorSpec, newest_for: Callable[[str], Iterable[PolicyUpdate]]) -> None:
        """Handle an actor's first agents with a behaviour id; `newest_for` returns the newest policies for an id."""

    def send(self, update: PolicyUpdate) -> None:
        """Send a policy to the host."""

    def newest_for(self, behavior_id: str) -> Iterable[PolicyUpdate]:
        """Return the announcement of the host's policy, for an actor that starts later."""


class Broadcaster:
    """Sends messages to the actors without waiting. Actors that have ended are skipped.

    Args:
        launcher: holds the actors.
        at_rest: called before grants are sent; all hosts of a deterministic run are idle at that moment.
    """

    def __init__(self, launcher: Launcher, at_rest: Callable[[], None] = lambda: None) -> None:
        self._launcher = launcher
        self._at_rest = at_rest
        self.relay: PolicyRelay | None = None
        """Host that receives policies in place of the actors, which then receive only announcements; None if actors
        hold their own policies.
        """
        self.publisher = PolicyPublisher(PublisherPort(self.send_policy, self.send_to_sources))

    def sources(self) -> list[HostHandle]:
        """Return the hosts that produce experience."""
        return [slot.handle for slot in self._launcher.actors.values()]

    def send_to_sources(self, message: ControlMessage) -> None:
        """Send a message to all hosts that produce experience."""
        for host in self.sources():
            host.control.send(message)

    def grant(self, grants: Sequence[Grant]) -> None:
        """Send each grant to its actor."""
        if grants:
            self._at_rest()
        for grant in grants:
            for slot in self._launcher.actors.values():
                if slot.source == grant.source:
                    slot.handle.control.send(grant)

    def catch_up(self, slot: ActorSlot, behavior_id: str) -> None:
        """Send an actor that starts later the messages that the other actors already have."""
        policies = self.publisher if self.relay is None else self.relay
        for update in policies.newest_for(behavior_id):
            slot.policies[behavior_id].put_nowait(update)
        if self.publisher.assignment is not None:
            slot.handle.control.send(self.publisher.assignment)

    def send_policy(self, update: PolicyUpdate, to_actors: bool = False) -> None:
        """Send a policy to the relay or, without a relay or if `to_actors`, to all actors with agents of its id."""
        if self.relay is not None and not to_actors:
            self.relay.send(update)
            return
        for slot in self._launcher.actors.values():
            sender = slot.policies.get(update.behavior_id)
            if sender is not None:
                with suppress(QueueClosed):  # the actor has ended
                    sender.put_nowait(update)

"""Ray hosts: each host runs in a Ray actor, which main starts, calls and ends."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import ray
from ray.exceptions import ActorUnavailableError, RayError

from headrace.config import RunConfig
from headrace.config.host_kinds import HostResources
from headrace.config.league_placement import resources_of
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.common.graph import league_seats
from headrace.pipeline.common.run_parts import host_role
from headrace.pipeline.control.channel import CONTROL_BOUND, LocalControl
from headrace.pipeline.control.messages import OpenEdge
from headrace.pipeline.hosts.lifeline import ANSWER_S
from headrace.pipeline.hosts.protocol import Feed, HostHandle, HostPlan
from headrace.pipeline.hosts.ray.calls import RayDeliveries, RaySource, Stored
from headrace.pipeline.hosts.ray.session import RaySession
from headrace.pipeline.hosts.ray.worker import DOWN, UP, RayWorker
from headrace.pipeline.run_folder.lock import refuse_writes
from headrace.queues.agent_manager_queue import Overflow
from headrace.queues.ends import Inlet, Outlet
from headrace.queues.pull import PullInlet
from headrace.queues.push import PushOutlet

log = logging.getLogger(__name__)

CALLS = 10_000
"""Maximum number of concurrent calls to a host. Each item in transit and each queue with a reader takes one call."""

_HEADLESS = (
    "the head node of the Ray cluster is gone, and Ray ends everything that belongs to the cluster (see "
    "pipeline.ray.address)"
)
VERDICT_S = 60.0
"""Seconds within which a cluster notices that a node has died."""


class Consumer(Protocol):
    """A reader of a host's queue; it is notified when the host is replaced."""

    def replace(self, key: str, actor: Any) -> None:
        """Switch to the actor that now runs the host named `key`; None if the host has no successor."""


class RayHost:
    """A running host on Ray, as seen by main.

    Args:
        plan: the host's plan.
        actor: handle of the host's `RayWorker`.
        session: the Ray instance in which the host runs.
        stored: the items in the object store that several hosts share.
        maxlen: maximum length of the FIFO queues.
        resources: description of the resources that the host requests.
    """

    may_hang = True

    def __init__(
        self,
        plan: HostPlan,
        actor: Any,
        session: RaySession,
        stored: Stored,
        maxlen: int,
        resources: str,
    ) -> None:
        self.plan = plan
        self.actor = actor
        self.source = RaySource(actor)
        self.consumers: dict[str, Consumer] = {}
        """Readers of this host's outgoing queues, keyed by queue name."""
        self.feeders: list[RayHost] = []
        """Hosts that put items directly into this host's `feed_name` queue."""
        self.feed_name = ""
        self.served: dict[str, dict[str, Any]] = {}
        """Arguments of `serve` for this host's outgoing queues, keyed by queue name."""
        self.outlets: dict[str, PushOutlet[Any]] = {}
        """Main's ends of the queues to this host that a successor may take over, keyed by queue name."""
        self._session = session
        self._deliveries = RayDeliveries(actor, stored)
        self._maxlen = maxlen
        self._resources = resources
        self._settled = self._closed = False
        self._up: PullInlet[Any] = PullInlet(UP, CONTROL_BOUND, {plan.name: self.source})
        self._up.settle(plan.name)
        self.control = LocalControl(PushOutlet(DOWN, CONTROL_BOUND, self._deliveries.deliver), self._up)
        self._end = asyncio.ensure_future(self._run())

    async def inlet(self, name: str, newest: bool = True) -> Inlet[Any]:
        """Open main's end of a queue from this host."""
        if newest:
            return self.fetched_by_main(name, 1, "replace_oldest")
        return self.fetched_by_main(name, self._maxlen, "wait")

    async def outlet(self, name: str, newest: bool = False) -> Outlet[Any]:
        """Open main's end of a queue to this host."""
        maxlen, overflow = (1, "replace_oldest") if newest else (self._maxlen, "wait")
        self.control.send(OpenEdge(name, {"maxlen": maxlen, "overflow": overflow, "sources": {}}))
        deliver = self._deliveries.deliver if newest else self._deliveries.deliver_alone
        if self.plan.role != "learner":
            return PushOutlet(name, maxlen, deliver, overflow)  # type: ignore[arg-type]
        outlet: PushOutlet[Any] = PushOutlet(name, maxlen, deliver, renewable=not self._settled)
        self.outlets[name] = outlet
        return outlet

    def fetched_by_main(self, name: str, maxlen: int, overflow: Overflow) -> PullInlet[Any]:
        """Open both ends of a queue from this host to main; return main's end."""
        self.serve(name, maxlen, overflow)
        inlet: PullInlet[Any] = PullInlet(name, maxlen, {self.plan.name: self.source}, overflow)
        self.add_consumer(name, MainConsumer(inlet))
        return inlet

    def serve(self, name: str, maxlen: int, overflow: Overflow) -> None:
        """Let the host open its end of an outgoing queue."""
        self.served[name] = {"maxlen": maxlen, "overflow": overflow}
        self.control.send(OpenEdge(name, self.served[name]))

    def add_consumer(self, name: str, consumer: Consumer) -> None:
        """Register the reader of one of this host's outgoing queues."""
        self.consumers[name] = consumer
        if self._settled:
            consumer.replace(self.plan.name, None)

    def succeed(self, dead: RayHost) -> None:
        """Take over a dead host's outgoing queues and, for a learner, its incoming queues too."""
        self.consumers, dead.consumers = dead.consumers, {}
        for name, consumer in self.consumers.items():
            self.serve(name, **dead.served[name])
            consumer.replace(self.plan.name, self.actor)
        self.outlets, dead.outlets = dead.outlets, {}
        for name, outlet in self.outlets.items():
            self.control.send(OpenEdge(name, {"maxlen": self._maxlen, "overflow": "wait", "sources": {}}))
            outlet.renew(self._deliveries.deliver_alone)

    def admit(self, plan: HostPlan) -> None:
        """Make this host refuse all older incarnations of a host that is about to start."""
        if not self._closed:
            self.actor.admit.remote(plan.name, plan.incarnation)

    def settle(self) -> None:
        """Let readers notice when this host ends, because no replacement will come."""
        if not self._settled:
            self._settled = True
            for consumer in self.consumers.values():
                consumer.replace(self.plan.name, None)
            for outlet in self.outlets.values():
                outlet.settle()

    async def wait(self) -> int:
        """Wait for the host to end; return its exit status, or -9 if it was lost."""
        await asyncio.wait([self._end])
        return -9 if self._end.cancelled() else self._end.result()

    @property
    def began(self) -> bool:
        """True if the host has sent any message."""
        said = self._up.statistics()
        return said.items_out > 0 or said.size > 0

    def lose(self) -> None:
        """Treat the host as ended, because the Ray head node is lost."""
        self.control.close()
        self._up.close()
        self._end.cancel()

    async def describe(self) -> str:
        """Describe what the host is doing, with its stack."""
        with suppress(TimeoutError, RayError):
            async with asyncio.timeout(ANSWER_S):
                return str(await self.actor.describe.remote())
        return (
            "it does not respond: its node is gone or stopped, or no node has room for it yet (it requests "
            f"{self._resources})"
        )

    def kill(self) -> None:
        """End the host's process immediately."""
        if self._session.lost:
            self.lose()
        elif ray.is_initialized():
            with suppress(RayError):
                ray.kill(self.actor)

    def close(self) -> None:
        """Close the control channel, end the process and release everything that main holds for the host."""
        if self._closed:
            return
        self._closed = True
        self.control.close()
        self.settle()
        for host in self.feeders:
            if not host._closed:
                host.source.finish(self.feed_name)
        self.kill()

    async def _run(self) -> int:
        try:
            return int(await self.actor.run.remote())
        except RayError as error:
            if not self._closed:
                refuse_writes(self.plan.folder, self.plan.incarnation)
                log.warning("%s: %s", self.plan.name, " ".join(str(await self._verdict(error)).split()))
            self.kill()  # the node may only be unreachable, and no host may run twice
            return -9

    async def _verdict(self, error: RayError) -> RayError:
        """Wait until Ray knows why a host is unreachable. Before that, Ray might start a replacement on a dead node."""
        with suppress(TimeoutError):
            async with asyncio.timeout(VERDICT_S):
                while isinstance(error, ActorUnavailableError):
                    try:
                        await self.actor.describe.remote()
                    except RayError as later:
                        error = later
                        await asyncio.sleep(VERDICT_S / 100)
                    else:
                        break  # the actor is alive, but the call that ran the host is lost
        return error


@dataclass(frozen=True)
class MainConsumer:
    """Represents main as the reader of a host's queue."""

    inlet: PullInlet[Any]

    def replace(self, key: str, actor: Any) -> None:
        """Handle a replacement; see `Consumer.replace`."""
        if actor is None:
            self.inlet.settle(key)
        else:
            self.inlet.replace(key, RaySource(actor))


@dataclass(frozen=True)
class HostConsumer:
    """Represents another host on Ray as the reader of a host's queue."""

    actor: Any
    name: str

    def replace(self, key: str, actor: Any) -> None:
        """Handle a replacement; see `Consumer.replace`."""
        self.actor.replace.remote(self.name, key, actor)


@dataclass(frozen=True)
class RayFeed:
    """A queue that several hosts on Ray fill."""

    name: str
    maxlen: int
    hosts: Sequence[RayHost]

    async def open(self) -> Inlet[Any]:
        """Open the queue's consuming end in main."""
        inlet: PullInlet[Any] = PullInlet(self.name, self.maxlen, {host.plan.name: host.source for host in self.hosts})
        for host in self.hosts:
            host.add_consumer(self.name, MainConsumer(inlet))
        return inlet

    def hand_to(self, host: RayHost) -> None:
        """Let another host on Ray open the queue's consuming end."""
        actors = {each.plan.name: each.actor for each in self.hosts}
        host.control.send(OpenEdge(self.name, {"maxlen": self.maxlen, "overflow": "wait", "sources": actors}))
        host.feeders, host.feed_name = list(self.hosts), self.name
        for each in self.hosts:
            each.add_consumer(self.name, HostConsumer(host.actor, self.name))


class RayHosts:
    """Starts hosts in Ray actors."""

    def __init__(self, config: RunConfig, tasks: asyncio.TaskGroup) -> None:
        self._config = config
        self._maxlen = config.pipeline.queues.trajectories.maxlen
        self._session: RaySession | None = None
        self._watch: asyncio.Task[None] | None = None
        self._hosts: dict[str, RayHost] = {}
        self._stored = Stored()
        self._seats = league_seats(config)

    async def start(self, plan: HostPlan, feed: Feed | None = None, replaces: HostHandle | None = None) -> RayHost:
        """Start a host. If no node has enough free resources, wait for one.

        Raises:
            RunError: if Ray can't be started or joined.
        """
        assert feed is None or isinstance(feed, RayFeed), "what comes from another kind of host passes through main"
        assert replaces is None or isinstance(replaces, RayHost), "a replacement is of the same kind"
        if self._session is None:
            await asyncio.sleep(0)  # starting blocks this thread for seconds: let pending tasks run first
            self._session = RaySession(self._config)
            refuse_writes(plan.folder)
            if not self._session.found:
                self._watch = asyncio.create_task(self._watch_head(self._session), name="watching Ray's head")
        session = self._session
        if session.lost:
            raise RunError(_HEADLESS)
        # If a follower's learner is in another kind of host, Ray may not be running yet.
        own = session.own or (plan.role == "follower" and self._config.pipeline.ray.address is None)
        options = _options(self._resources_of(plan), own)
        # The clock makes the number unique among the runs that resume in one folder.
        old = self._hosts.get(plan.name)
        plan = replace(plan, incarnation=max(time.time_ns(), old.plan.incarnation + 1 if old is not None else 0))
        if old is not None:
            for each in self._hosts.values():
                each.admit(plan)
        worker_class = ray.remote(concurrency_groups={"watch": 1})(RayWorker).options(**options, max_concurrency=CALLS)
        actor = worker_class.remote(plan.to_plain(), sys.path if own else [])
        host = RayHost(plan, actor, session, self._stored, self._maxlen, _in_words(options))
        self._hosts[plan.name] = host
        if feed is not None:
            feed.hand_to(host)
        if replaces is not None:
            host.succeed(replaces)
            feeders, replaces.feeders = replaces.feeders, []
            if feeders:
                present = [self._hosts[each.plan.name] for each in feeders]
                RayFeed(replaces.feed_name, self._maxlen, present).hand_to(host)
        return host

    def gather(self, name: str, hosts: Sequence[RayHost]) -> RayFeed:
        """Let each host open its end of a queue; return the queue's consuming end."""
        for host in hosts:
            host.serve(name, self._maxlen, "wait")
        return RayFeed(name, self._maxlen, hosts)

    def close(self) -> None:
        """End Ray, or leave the cluster."""
        if self._watch is not None:
            self._watch.cancel()
        if self._session is not None:
            self._session.close()

    def _resources_of(self, plan: HostPlan) -> HostResources:
        placed_as = host_role(plan.role).placed_as
        if plan.role == "actor" and self._seats:
            return resources_of(self._config, "actors", self._seats[plan.replica])
        if placed_as == "learners":
            return resources_of(self._config, "learners", plan.behavior)
        resources: HostResources = getattr(self._config.pipeline.hosts, placed_as).resources
        return resources

    async def _watch_head(self, session: RaySession) -> None:
        """Watch the head node; when it is lost, treat the actors as ended. Main can't replace them, so the run ends.

        Learners may still save their state, except those that have not begun to run; these are treated as ended too.
        """
        await session.wait_until_lost()
        log.warning(_HEADLESS)
        for host in self._hosts.values():
            if host.plan.role == "actor" or not host.began:
                host.lose()


def _options(resources: HostResources, own: bool) -> dict[str, Any]:
    """Return the Ray options for an actor that requests these resources."""
    options: dict[str, Any] = {
        "num_cpus": resources.cpus if resources.cpus is not None else float(not own),
        "num_gpus": resources.gpus,
        "resources": dict(resources.custom),
        "scheduling_strategy": "SPREAD" if resources.placement == "spread" else "DEFAULT",
    }
    if resources.memory is not None:
        options["memory"] = resources.memory
    return options


def _in_words(options: dict[str, Any]) -> str:
    amounts = {"CPUs": options["num_cpus"], "GPUs": options["num_gpus"], **options["resources"]}
    if "memory" in options:
        amounts["bytes of memory"] = options["memory"]
    return ", ".join(f"{amount:g} {name}" for name, amount in amounts.items() if amount) or "nothing"

"""A kind of host for tests: in main's event loop, with a delay on every way, and actors that can be killed.

Ways are control channels, policy queues and trajectory queues, each with a delay of its own: what goes on different
ways overtakes each other, as it does between processes. As there, main keeps the ends of a dead actor's ways for its
replacement; what lies in its queues is delivered or lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.config.host_kinds import HOST_KINDS, HostKind
from headrace.pipeline.control import LocalControl, local_pair
from headrace.pipeline.hosts.inline import InlineHost, InlineHosts, LocalEdges, LocalFeed
from headrace.pipeline.hosts.run_host import build_host, serve
from headrace.queues.agent_manager_queue import AgentManagerQueue
from headrace.queues.errors import QueueClosed
from headrace.queues.messages import TrajectoryBatch

KIND = "delayed"
APART = "apart"
"""The same, but taken for one whose hosts run beside main."""


class Network:
    """The hosts of one run, the ways between them and main, and what has passed there.

    Args:
        random: for delays and accidents.
        slowness_s: each way has one of these as its mean delay.
        build: makes hosts.
        sent: called with each control message that main sends.
    """

    current: Network

    def __init__(
        self,
        random: np.random.Generator,
        slowness_s: Sequence[float],
        build: Callable[..., Any] = build_host,
        sent: Callable[[Any], None] = lambda message: None,
    ) -> None:
        self.build = build
        self.sent = sent
        self.hosts: list[DelayedHost] = []
        self.queues: list[AgentManagerQueue[Any]] = []
        self.delivered: dict[str, list[TrajectoryBatch]] = {}
        """Trajectories by the queue that they came out of, in their order."""
        self.tasks: list[asyncio.Task[None]] = []
        self.killed: list[str] = []
        """Hosts that main had to kill: they did not end by themselves."""
        self.random = random
        self._slowness_s = slowness_s

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Enter the kind into the table of host kinds."""
        Network.current = self
        HOST_KINDS[KIND] = HostKind("delayed", f"{__name__}:DelayedHosts", in_main=True)
        HOST_KINDS[APART] = HostKind("apart", f"{__name__}:DelayedHosts")
        try:
            yield
        finally:
            del HOST_KINDS[KIND], HOST_KINDS[APART]

    def delays(self) -> Callable[[], float]:
        """Return what draws the delays of one way: most are short, some are long."""
        mean = float(self.random.choice(self._slowness_s))
        return lambda: float(mean * self.random.exponential() * self.random.choice([0.1, 1.0, 5.0])) if mean else 0.0

    def queue(self, name: str, maxlen: int, newest: bool = False) -> AgentManagerQueue[Any]:
        """Make one queue of the network."""
        made: AgentManagerQueue[Any] = AgentManagerQueue(name, maxlen, "replace_oldest" if newest else "wait")
        self.queues.append(made)
        return made

    async def carry(self, receiver: Any, sender: Any, closes: bool = True) -> None:
        """Carry items from one queue to another, each with a delay."""
        delay_s = self.delays()
        try:
            async for item in receiver:
                await asyncio.sleep(delay_s())
                if isinstance(item, TrajectoryBatch):
                    self.delivered.setdefault(receiver.name, []).append(item.copy())
                await sender.put(item)
        except QueueClosed:
            pass
        finally:
            receiver.close()
            if closes:
                sender.close()

    async def convey(self, inbox: LocalControl, outbox: LocalControl, down: bool) -> None:
        """Carry control messages; the end of the channel takes its time too."""
        delay_s = self.delays()
        async for message in inbox.receive():
            if down:
                self.sent(message)
            await asyncio.sleep(delay_s())
            outbox.send(message)
        outbox.close()

    def kill(self, name: str) -> DelayedHost:
        """Kill the newest host of a name; what lies in its queues may be lost with it."""
        host = next(each for each in reversed(self.hosts) if each.plan.name == name)
        host.dead = True
        InlineHost.kill(host)
        for way in host.ways if self.random.random() < 0.5 else ():
            for carrier in way.carriers:
                carrier.cancel()
        return host

    def close(self) -> None:
        """End whatever still carries: the run is over."""
        for task in self.tasks:
            task.cancel()


@dataclass
class Way:
    """A trajectory queue from an actor and its replacements."""

    name: str
    end: Any
    carriers: list[asyncio.Task[None]] = field(default_factory=list)

    async def close(self) -> None:
        """Close the end when all has been carried."""
        await asyncio.wait(self.carriers)
        self.end.close()


class Kept:
    """A learner's end of a queue, which outlives its death, for the learner that takes its place."""

    def __init__(self, end: Any, host: DelayedHost) -> None:
        self.end = end
        self._host = host

    def __getattr__(self, name: str) -> Any:
        return getattr(self.end, name)

    def __aiter__(self) -> Any:
        return self.end.__aiter__()

    def close(self) -> None:
        if not self._host.dead:
            self.end.close()


class DelayedHost(InlineHost):
    """A host behind slow ways."""

    network: Network
    ways: Sequence[Way] = ()
    kept: dict[str, Kept]
    dead = False

    def hand(self, name: str, end: Any) -> Any:
        if self.plan.role != "learner":
            return super().hand(name, end)
        super().hand(name, self.kept.setdefault(name, Kept(end, self)))
        return end

    async def receiver(self, name: str, newest: bool = True) -> Any:
        near, far = (self.network.queue(name, 1, newest=newest) for _ in range(2))
        self._spawn(self.network.carry(self.hand(name, far), near))
        return near

    async def sender(self, name: str, newest: bool = False) -> Any:
        near, far = (self.network.queue(name, 1 if newest else self._maxlen, newest) for _ in range(2))
        self._spawn(self.network.carry(near, self.hand(name, far)))
        return near

    def add_way(self, way: Way) -> None:
        """Let the host put trajectories into a way."""
        link = self.hand(way.name, self.network.queue(way.name, self._maxlen))
        self._task.add_done_callback(lambda _: link.close())
        way.carriers.append(self._spawn(self.network.carry(link, way.end, closes=False)))
        self.ways = (*self.ways, way)

    def kill(self) -> None:
        if not self._task.done():
            self.network.killed.append(self.plan.name)
        super().kill()

    def rule_out_successor(self) -> None:
        for way in self.ways:
            self._spawn(way.close())

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        self.network.tasks.append(asyncio.get_running_loop().create_task(work))
        return self.network.tasks[-1]


class DelayedHosts(InlineHosts):
    """The factory of such hosts."""

    async def start(self, plan: Any, feed: Any = None, replaces: Any = None) -> DelayedHost:
        network = Network.current
        receiver = await feed.open() if feed is not None else None
        control, main_side = local_pair(plan.name)
        host_side, theirs = local_pair(plan.name)
        edges = LocalEdges()
        task = self._tasks.create_task(serve(plan, theirs, edges, network.build), name=plan.name)
        host = DelayedHost(plan, self._maxlen, control, edges, task)
        host.network, host.kept = network, {}
        network.hosts.append(host)
        network.tasks += [
            self._tasks.create_task(network.convey(main_side, host_side, down=True)),
            self._tasks.create_task(network.convey(host_side, main_side, down=False)),
        ]
        if receiver is not None:
            host.hand(receiver.name, receiver)
        for way in replaces.ways if replaces is not None else ():
            host.add_way(way)
        if plan.role == "learner" and replaces is not None:
            for name, end in replaces.kept.items():
                host.hand(name, end.end)
        return host

    def gather(self, name: str, hosts: Sequence[Any]) -> LocalFeed:
        queue = Network.current.queue(name, self._maxlen)
        ends = [queue.add_producer() for _ in hosts]
        for host, end in zip(hosts, ends, strict=True):
            host.add_way(Way(name, end))
        return LocalFeed(queue)

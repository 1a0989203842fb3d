"""Process hosts: each host in its own process, or several learners in one; processes are never forked.

The child is `python -m headrace.pipeline.hosts.child` (`spawn`); one msgpack message on its standard input carries its
plan, control sockets and links. The child ends when it has no work left, when main's end of the control channel closes,
or immediately when main is gone (`parent_death`). Killing main therefore leaves no process behind.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from headrace.config import RunConfig
from headrace.pipeline.common.errors import RunError
from headrace.pipeline.common.graph import actor_names, decides_centrally, learner_name
from headrace.pipeline.common.process import describe_limit
from headrace.pipeline.control import ControlMessage, HostFailed, HostFinished, OpenEdge, SocketControl
from headrace.pipeline.hosts.early_children import learner_processes, most_learner_processes, take_child
from headrace.pipeline.hosts.links import HostLinks, policy_link, trajectory_link
from headrace.pipeline.hosts.protocol import Feed, HostHandle, HostPlan
from headrace.pipeline.hosts.run_host import NOTICE
from headrace.pipeline.hosts.spawn import ChildProcess
from headrace.queues.ends import Receiver, Sender
from headrace.queues.links import LinkEnd
from headrace.queues.platform import Segment, connected_pair, write_ticket
from headrace.queues.shared_queue import SharedReceiver, SharedSender

SOCKETS_CLOSE_S = 1.0
"""Seconds within which a dead process's sockets close, unless its forks still hold them. Closing takes
milliseconds; the rest is for main to read what has arrived."""


# A learner process costs 200 MB and a second of imports; more processes than cores gain nothing (docs/decisions/010).
class SharedProcess:
    """A process that accepts more hosts as long as at least one is running in it.

    Args:
        child: a child without a host.
        tasks: the group for the task that receives notices of ended hosts.
    """

    def __init__(self, child: ChildProcess, tasks: asyncio.TaskGroup) -> None:
        self.child = child
        self._tasks = tasks
        self._numbers = itertools.count()
        self._ends: dict[int, asyncio.Future[int]] = {}
        """Futures for the hosts' exit statuses, keyed by host number."""
        self._taking_in = asyncio.Lock()
        self._over = False

    @property
    def open(self) -> bool:
        """True while the process accepts hosts."""
        return not self._over and self.child.alive

    async def take_in(
        self, start_message: dict[str, Any], resources: Sequence[socket.socket | Segment]
    ) -> SharedProcessHost:
        """Start a host in the process; the arguments are those of `ChildProcess.assign`."""
        number = next(self._numbers)
        self._ends[number] = asyncio.get_running_loop().create_future()
        try:
            async with self._taking_in:
                await self.child.assign({**start_message, "number": number}, resources, more=True)
                if number == 0:
                    self._tasks.create_task(self._await_ends())
        except BaseException:
            del self._ends[number]
            self._over = True  # the other hosts' owners notice that the process has ended
            raise
        return SharedProcessHost(self, self._ends[number])

    async def _await_ends(self) -> None:
        """Receive notices of ended hosts until the process has ended, which also ends all hosts still in it."""
        notices = self._tasks.create_task(self._take_notices())
        try:
            status = await self.child.wait()
            await asyncio.wait([notices], timeout=SOCKETS_CLOSE_S)
            for end in self._ends.values():
                if not end.done():
                    end.set_result(status)
        finally:
            self._over = True
            notices.cancel()
            self.child.close()
            self.child.start_socket.close()

    async def _take_notices(self) -> None:
        received, loop, sock = bytearray(), asyncio.get_running_loop(), self.child.start_socket
        with suppress(ConnectionError):  # the child has died
            while data := await loop.sock_recv(sock, 1 << 10):
                received += data
                while len(received) >= NOTICE.size:
                    number, status = NOTICE.unpack_from(received)
                    del received[: NOTICE.size]
                    self._ends[number].set_result(status)
                if not self._over and all(end.done() for end in self._ends.values()):
                    self._over = True
                    with suppress(OSError):  # the child has already closed it
                        sock.shutdown(socket.SHUT_WR)  # no more start messages follow

    def kill(self) -> None:
        """Kill the process and all its hosts."""
        self._over = True
        self.child.kill()


class SharedProcessHost:
    """One host in a shared process; used in place of a `ChildProcess`."""

    def __init__(self, process: SharedProcess, end: asyncio.Future[int]) -> None:
        self._process = process
        self.pid = process.child.pid
        self.ended = end
        """Future that resolves to the exit status when the host or the process has ended."""

    @property
    def failure(self) -> HostFailed | None:
        """Error that the process raised outside its hosts; None if it raised no error or has not ended."""
        return self._process.child.failure

    async def wait(self) -> int:
        """Wait for the host or the process to end; return the exit status, which is negative if a signal killed it."""
        return await asyncio.shield(self.ended)

    def kill(self) -> None:
        """Kill the process if the host has not ended yet."""
        if not self.ended.done():
            self._process.kill()

    async def ask(self) -> str:
        """Ask the process what it is doing, and return its answer."""
        return await self._process.child.ask()

    def close(self) -> None:
        """Do nothing: the process and its lifeline are released when the process ends."""


SPARE_BEHAVIORS = 4
"""Number of behaviours that an environment may have in addition to the listed ones."""
TEAMS = 4
"""Number of behaviour ids (teams) to allow for per behaviour name."""
FILES_PER_BEHAVIOR = 20
"""Number of files that an actor's links of one behaviour name keep open in main."""


class ProcessControl(SocketControl):
    """Main's end of the control channel. It also yields an error that the host's process could not send itself."""

    def follow(self, process: ChildProcess | SharedProcessHost, close_s: float = SOCKETS_CLOSE_S) -> None:
        """Close the channel when a process ends, even if a fork or the system still holds the other end.

        Args:
            process: the process that has the other end.
            close_s: see `SOCKETS_CLOSE_S`.
        """
        self._process = process
        loop, transport = asyncio.get_running_loop(), self._inward[1].transport

        def leave() -> None:
            if self.idle:  # all messages that arrived have been read
                transport.abort()
            elif not transport.is_closing():
                loop.call_later(close_s, leave)

        process.ended.add_done_callback(lambda _: loop.call_later(close_s, leave))

    async def receive(self) -> AsyncIterator[ControlMessage]:
        """Iterate over messages until the host ends.

        If the host did not announce its end, add its process's error, if any.
        """
        said_goodbye = False
        async for message in super().receive():
            said_goodbye = isinstance(message, HostFinished | HostFailed)
            yield message
        if not said_goodbye:
            await self._process.wait()
            if self._process.failure is not None:
                yield self._process.failure


class ProcessHost:
    """A running process host, as seen by main."""

    may_hang, unplaced = True, False

    def __init__(
        self,
        plan: HostPlan,
        control: SocketControl,
        process: ChildProcess | SharedProcessHost,
        links: HostLinks,
    ) -> None:
        self.plan = plan
        self.control = control
        self.links = links
        self.edges: dict[str, dict[str, Any]] = {}
        """Addresses of the queues' links, keyed by queue name."""
        self.senders: dict[str, SharedSender[Any]] = {}
        """Main's ends of the queues to the host, keyed by queue name."""
        self._process = process
        self.pid = process.pid

    async def receiver(self, name: str, newest: bool = True) -> Receiver[Any]:
        """Open main's end of a queue from the host, on one of the host's links."""
        return await SharedReceiver.open(name, [self.take("out" if newest else "line", name)])

    async def sender(self, name: str, newest: bool = False) -> Sender[Any]:
        """Open main's end of a queue to the host, on one of the host's links.

        The host's role, not `newest`, determines whether the queue keeps only its newest item.
        """
        self.senders[name] = await SharedSender.open(name, self.take("into", name))
        return self.senders[name]

    def take(self, direction: str, name: str) -> LinkEnd:
        """Assign an unused link to a queue; return main's end of the link."""
        ticket, end = self.links.take(direction)
        self.open_edge(name, {"links": [ticket]})
        return end

    def open_edge(self, name: str, address: dict[str, Any]) -> None:
        """Let the host open its end of a queue."""
        self.edges[name] = address
        self.control.send(OpenEdge(name, address))

    def succeed(self, dead: ProcessHost) -> None:
        """Reopen the queues whose links were taken over from a dead host."""
        for name, address in dead.edges.items():
            if self.links.taken_over.issuperset(address["links"]):
                self.open_edge(name, {**address, "succeeds": True})
                if name in dead.senders:
                    self.senders[name] = dead.senders[name]
                    self.senders[name].reconnect()

    def rule_out_successor(self) -> None:
        """Close main's copies of the host's ends."""
        self.links.rule_out_successor()

    async def wait(self) -> int:
        """Wait for the process to end; return its exit status, which is negative if a signal killed it."""
        return await self._process.wait()

    async def describe(self) -> str:
        """Describe what the host is doing, with its stack."""
        return await self._process.ask()

    def kill(self) -> None:
        """Kill the process, after which everything that it has started is ended."""
        self._process.kill()

    def close(self) -> None:
        """Close the control channel, the lifeline and all link ends that main holds."""
        self.control.close()
        self._process.close()
        self.links.close()


@dataclass(frozen=True)
class LinkFeed:
    """A queue with one link from each of several hosts."""

    name: str
    ends: Sequence[LinkEnd]

    async def open(self) -> Receiver[Any]:
        """Open the queue's consuming end in main."""
        return await SharedReceiver.open(self.name, self.ends)


class ProcessHosts:
    """Starts hosts in separate processes."""

    def __init__(self, config: RunConfig, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._learners_share = config.pipeline.hosts.learners.replicas == 1
        self._process_of = learner_processes(config)
        """Names of the learner processes, keyed by behaviour; contains behaviours that are listed or have started to
        learn.
        """
        self._most_processes = most_learner_processes(config)
        self._shared: dict[str, SharedProcess] = {}
        self._names = len(config.behaviors) + SPARE_BEHAVIORS
        replay = config.pipeline.hosts.replay
        self._shards = 0 if replay.kind is None else replay.replicas
        self._asking = len(actor_names(config)) if decides_centrally(config) else 0
        """Number of actors that use the inference host's policies."""
        slab_bytes = config.pipeline.queues.slab_bytes
        self._trajectories = trajectory_link(config.pipeline.queues.trajectories.maxlen, slab_bytes)
        self._policies = policy_link(slab_bytes)

    async def start(self, plan: HostPlan, feed: Feed | None = None, replaces: HostHandle | None = None) -> ProcessHost:
        """Start a host; return when the host has received its plan.

        Raises:
            RunError: if the limit on open files is reached.
        """
        assert feed is None or isinstance(feed, LinkFeed), "what comes from another kind of host passes through main"
        assert replaces is None or isinstance(replaces, ProcessHost), "a replacement is of the same kind"
        try:
            links = self._make_links(plan.role, replaces)
            tickets = {f"feed-{i}": end for i, end in enumerate(feed.ends)} if feed is not None else {}
            links.given_at_start |= tickets
            try:
                host = await start_process(plan, links, self._shared_by(plan))
            except BaseException:
                links.close()  # including the dead host's links, or their peers would wait forever
                raise
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise RunError(f"{plan.name} can't be started: {describe_limit()}") from error
            raise
        if feed is not None:
            host.open_edge(feed.name, {"links": [*tickets]})
        if replaces is not None:
            host.succeed(replaces)
        return host

    def _shared_by(self, plan: HostPlan) -> SharedProcess | None:
        """Return the process that a learner shares with others; None for other roles, or if no learners share."""
        if plan.role != "learner" or not self._learners_share:
            return None
        name = self.process_of(plan.behavior)
        if name not in self._shared or not self._shared[name].open:
            self._shared[name] = SharedProcess(take_child(name), self._tasks)
        return self._shared[name]

    def process_of(self, behavior: str) -> str:
        """Return the name of a behaviour's learner process.

        If it has none yet, assign a new process or the least used one.
        """
        if behavior not in self._process_of:
            learners = Counter(self._process_of.values())
            few = len(learners) < self._most_processes
            name = learner_name(behavior) if few else min(learners, key=learners.__getitem__)
            self._process_of[behavior] = name
        return self._process_of[behavior]

    def gather(self, name: str, hosts: Sequence[ProcessHost]) -> LinkFeed:
        """Assign one link from each host to a queue."""
        return LinkFeed(name, [host.take("out", name) for host in hosts])

    def close(self) -> None:
        """Do nothing: the hosts themselves release all resources."""

    def _make_links(self, role: str, replaces: ProcessHost | None) -> HostLinks:
        """Create as many links as a host with this role may need, minus those taken over from a dead host."""
        trajectories, policies, shards = self._trajectories, self._policies, self._shards
        match role:
            case "learner" if replaces is not None:  # incoming links too, because their producers are still alive
                links = HostLinks()
                links.take_over(replaces.links)
                return links
            case "learner":  # policies out; trajectories in, if main sends them; replay shards
                into = (trajectories, 1 + shards)
                return HostLinks.make(out=(policies, 1), into=into, line=(trajectories, shards))
            case "replay_shard":
                return HostLinks.make(into=(trajectories, 1), line=(trajectories, 1))
            case "follower":  # the learner's inputs, including those from replay shards
                return HostLinks.make(into=(trajectories, 1 + shards))
            case "evaluation" | "exhibition":
                return HostLinks.make(into=(policies, self._names * TEAMS))
            case "inference":  # policies in, and one request at a time from each actor; answers out
                into = (policies, self._names * TEAMS + self._asking)
                return HostLinks.make(into=into, line=(trajectories, self._asking))
        asks = bool(self._asking)
        links = HostLinks.make(
            out=(trajectories, 0 if replaces else self._names),
            into=(policies, self._names * TEAMS + asks),
            line=(trajectories, asks),
        )
        if replaces is not None:
            links.take_over(replaces.links, "out")
        return links


async def start_process(plan: HostPlan, links: HostLinks, shared: SharedProcess | None = None) -> ProcessHost:
    """Start a host in its own process or a shared one; return when the host has received its plan."""
    orders, their_orders = connected_pair()
    reports, their_reports = connected_pair()
    with ExitStack() as ours, their_orders, their_reports:
        ours.enter_context(orders)
        ours.enter_context(reports)
        child = take_child(plan.name) if shared is None else shared.child
        start_message: dict[str, Any] = {
            "plan": plan.to_plain(),
            "path": sys.path,
            "orders": write_ticket(their_orders, child.pid),
            "reports": write_ticket(their_reports, child.pid),
            "links": {name: end.ticket(child.pid) for name, end in links.given_at_start.items()},
        }
        ends = [part for end in links.given_at_start.values() for part in (end.sock, end.segment)]
        resources = [their_orders, their_reports, *ends]
        process: ChildProcess | SharedProcessHost
        if shared is None:
            await child.assign(start_message, resources)
            process = child
        else:
            process = await shared.take_in(start_message, resources)
        ours.pop_all()
    control = await ProcessControl.open(reports, orders)
    control.follow(process)
    return ProcessHost(plan, control, process, links)

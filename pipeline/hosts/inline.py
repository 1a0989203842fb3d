"""Inline hosts: tasks in main's event loop, connected by plain queues."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.config import RunConfig
from headrace.pipeline.common.loop_watch import describe_holder
from headrace.pipeline.control import ControlEnd, OpenEdge, local_pair
from headrace.pipeline.hosts.protocol import Feed, HostHandle, HostPlan
from headrace.queues.agent_manager_queue import AgentManagerQueue
from headrace.queues.ends import Receiver, Sender


class LocalEdges:
    """Queue ends within main's event loop: main stores each end under a name, and the host opens it once."""

    def __init__(self) -> None:
        self.ends: dict[str, Any] = {}

    async def open_sender(self, name: str, address: Mapping[str, Any]) -> Sender[Any]:
        """Return the producing end that main has stored under this name."""
        sender: Sender[Any] = self.ends.pop(name)
        return sender

    async def open_receiver(self, name: str, address: Mapping[str, Any]) -> Receiver[Any]:
        """Return the consuming end that main has stored under this name."""
        receiver: Receiver[Any] = self.ends.pop(name)
        return receiver

    def reconnect(self, name: str) -> None:
        """Do nothing: consumers in main are not replaced."""


class InlineHost:
    """A host that runs as a task in main's event loop.

    Args:
        plan: the host's plan.
        maxlen: maximum length of the FIFO queues.
        control: main's end of the control channel.
        edges: the host's queue ends.
        task: the task that runs the host.
    """

    may_hang = unplaced = False

    def __init__(
        self, plan: HostPlan, maxlen: int, control: ControlEnd, edges: LocalEdges, task: asyncio.Task[bool]
    ) -> None:
        self.plan = plan
        self.control = control
        self._maxlen = maxlen
        self._edges = edges
        self._task = task

    async def receiver(self, name: str, newest: bool = True) -> Receiver[Any]:
        """Create a queue from this host to main."""
        return self._open(name, newest)

    async def sender(self, name: str, newest: bool = False) -> Sender[Any]:
        """Create a queue from main to this host."""
        return self._open(name, newest)

    def _open(self, name: str, newest: bool) -> AgentManagerQueue[Any]:
        maxlen = 1 if newest else self._maxlen
        queue: AgentManagerQueue[Any] = AgentManagerQueue(name, maxlen, "replace_oldest" if newest else "wait")
        self.hand(name, queue)
        return queue

    def hand(self, name: str, end: Any) -> Any:
        """Let the host open a queue end, and return that end."""
        self._edges.ends[name] = end
        self.control.send(OpenEdge(name, {}))
        return end

    def rule_out_successor(self) -> None:
        """Do nothing: the host is never replaced."""

    async def wait(self) -> int:
        """Wait for the host to end; return 0 if it succeeded, and 1 otherwise."""
        await asyncio.wait([self._task])
        return 0 if not self._task.cancelled() and self._task.exception() is None and self._task.result() else 1

    async def describe(self) -> str:
        """Describe the stage in this event loop that has been silent the longest, with its stack."""
        return describe_holder(None, threading.get_ident())

    def kill(self) -> None:
        """Cancel the host's task."""
        self._task.cancel()

    def close(self) -> None:
        """Close the control channel."""
        self.control.close()


@dataclass(frozen=True)
class LocalFeed:
    """The consuming end of a queue within this event loop."""

    queue: AgentManagerQueue[Any]

    async def open(self) -> Receiver[Any]:
        """Return the queue's consuming end."""
        return self.queue


class InlineHosts:
    """Starts hosts in main's event loop."""

    def __init__(self, config: RunConfig, tasks: asyncio.TaskGroup) -> None:
        self._maxlen = config.pipeline.queues.trajectories.maxlen
        self._tasks = tasks

    async def start(self, plan: HostPlan, feed: Feed | None = None, replaces: HostHandle | None = None) -> InlineHost:
        """Start a host. Its feed may come from hosts of any kind."""
        from headrace.pipeline.hosts.run_host import serve

        receiver = await feed.open() if feed is not None else None
        control, theirs = local_pair(plan.name)
        edges = LocalEdges()
        task = self._tasks.create_task(serve(plan, theirs, edges), name=plan.name)
        host = InlineHost(plan, self._maxlen, control, edges, task)
        if receiver is not None:
            host.hand(receiver.name, receiver)
        return host

    def gather(self, name: str, hosts: Sequence[InlineHost]) -> LocalFeed:
        """Create one queue that has a producing end for each host."""
        queue: AgentManagerQueue[Any] = AgentManagerQueue(name, self._maxlen)
        ends = [queue.add_producer() for _ in hosts]  # open all before the first one can close
        for host, end in zip(hosts, ends, strict=True):
            host.hand(name, end)
        return LocalFeed(queue)

    def close(self) -> None:
        """Do nothing: inline hosts hold no other resources."""

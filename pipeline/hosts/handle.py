"""A host as main sees it: its plan, main's end of its control channel, its end, and how to end it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from pipeline.control.channel import ControlEnd, local_pair
from pipeline.hosts.edges import HostLinks, LocalEdges
from pipeline.hosts.plan import HostPlan


class HostHandle(Protocol):
    """A running host."""

    @property
    def plan(self) -> HostPlan:
        """What it is to be."""
        ...

    @property
    def control(self) -> ControlEnd:
        """Main's end of its control channel."""
        ...

    @property
    def links(self) -> HostLinks | None:
        """Of a process host; None where it shares main's event loop."""
        ...

    async def wait(self) -> int:
        """Wait for its end; 0 if it ended well."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...


class InlineHost:
    """A host as tasks in main's event loop.

    Args:
        plan: what it is to be.
        edges: where its queues' ends are put down.
        tasks: the group that owns its task.
    """

    links: HostLinks | None = None

    def __init__(self, plan: HostPlan, edges: LocalEdges, tasks: asyncio.TaskGroup) -> None:
        from pipeline.hosts.serve import serve

        self.plan = plan
        self.control, theirs = local_pair(plan.name)
        self._task = tasks.create_task(serve(plan, theirs, edges), name=plan.name)

    async def wait(self) -> int:
        """Wait for its end."""
        await asyncio.wait([self._task])
        return 0 if not self._task.cancelled() and self._task.exception() is None and self._task.result() else 1

    def kill(self) -> None:
        """Cancel its task."""
        self._task.cancel()

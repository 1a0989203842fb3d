"""The Ray actor that holds a host: its ends of queues, and the calls by which others reach them.

Ray lets an actor be called, and main is none. So what a host puts is fetched, and what main puts is delivered, messages
of the control channel too. Arrays stay in Ray's object store, from where they are read without a copy.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from pipeline.common.loop_holder import describe_holder
from pipeline.control.channel import CONTROL_BOUND, LocalControl
from pipeline.hosts.control_log import log_to_main
from pipeline.hosts.leftovers import watch_this_process
from pipeline.hosts.plan import HostPlan
from pipeline.hosts.ray.calls import RaySource
from pipeline.hosts.serve import serve
from queues.delivered import DeliveredInlet
from queues.ends import Inlet, Outlet
from queues.served import FetchingInlet, ServedOutlet

log = logging.getLogger(__name__)

SWITCH_S = 1e-4
"""Seconds after which a thread that computes lets another one run: Ray's threads carry every call, and need Python's
lock several times for each."""
UP, DOWN = "control up", "control down"
"""Names of the queues that are the control channel."""


class RayEdges:
    """The host's ends of queues by name; whoever asks for one before it is open waits for it."""

    def __init__(self) -> None:
        self._ends: dict[str, asyncio.Future[Any]] = {}
        self._served: list[ServedOutlet[Any]] = []

    async def open_outlet(self, name: str, address: Mapping[str, Any]) -> Outlet[Any]:
        """Make the producing end of a queue, whose items are fetched."""
        outlet: ServedOutlet[Any] = ServedOutlet(name, address["maxlen"], address["overflow"])
        self._served.append(outlet)
        self._end(name).set_result(outlet)
        return outlet

    async def open_inlet(self, name: str, address: Mapping[str, Any]) -> Inlet[Any]:
        """Make the consuming end of a queue: of what main delivers, or of what other hosts let be fetched."""
        bounds = address["maxlen"], address["overflow"]
        sources = {key: RaySource(actor) for key, actor in address["sources"].items()}
        inlet: Any = FetchingInlet(name, bounds[0], sources, bounds[1]) if sources else DeliveredInlet(name, *bounds)
        self._end(name).set_result(inlet)
        return inlet  # type: ignore[no-any-return]

    async def end(self, name: str) -> Any:
        """Wait for the end of a queue."""
        return await asyncio.shield(self._end(name))

    async def close(self) -> None:
        """Wait until what was put has been fetched, or nobody will."""
        for outlet in self._served:
            outlet.close()
        for outlet in self._served:
            await outlet.wait_closed()

    def _end(self, name: str) -> asyncio.Future[Any]:
        if name not in self._ends:
            self._ends[name] = asyncio.get_running_loop().create_future()
        return self._ends[name]


class RayWorker:
    """One host in an actor of Ray.

    Args:
        plan: the host, as plain data.
        path: main's `sys.path`, where main's folders are here as well; empty to leave this process's own.
    """

    def __init__(self, plan: Mapping[str, Any], path: Sequence[str]) -> None:
        if path:
            sys.path[:] = path
        watch_this_process()  # games that are started here end with it, whatever ends it
        self._plan = HostPlan(**plan)
        self._edges = RayEdges()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0

    async def run(self) -> int:
        """Be the host until it has nothing left to do; its exit status."""
        sys.setswitchinterval(SWITCH_S)
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        if self._plan.role in ("learner", "follower"):
            import torch

            torch.set_num_threads(1)
        bounds = {"maxlen": CONTROL_BOUND, "overflow": "wait", "sources": {}}
        up = await self._edges.open_outlet(UP, bounds)
        control = LocalControl(up, await self._edges.open_inlet(DOWN, bounds))
        log_to_main(self._plan, control)
        log.info("%s runs in process %d of %s.", self._plan.name, os.getpid(), ray.util.get_node_ip_address())
        ended_well = await serve(self._plan, control, self._edges)
        if ended_well:
            await self._edges.close()
        else:
            await up.wait_closed()  # type: ignore[attr-defined]
        return 0 if ended_well else 1

    async def fetch(self, name: str) -> list[Any] | None:
        """As `ServedOutlet.fetch`."""
        return await (await self._edges.end(name)).fetch()  # type: ignore[no-any-return]

    async def taken(self, name: str, count: int) -> None:
        """As `ServedOutlet.taken`."""
        (await self._edges.end(name)).taken(count)

    async def finish(self, name: str) -> None:
        """As `ServedOutlet.finish`."""
        (await self._edges.end(name)).finish()

    async def deliver(self, name: str, number: int, item: Any) -> bool:
        """As `DeliveredInlet.deliver`."""
        return await (await self._edges.end(name)).deliver(number, item)  # type: ignore[no-any-return]

    async def replace(self, name: str, key: str, actor: Any) -> None:
        """As `FetchingInlet.replace`; None for the actor: as `settle`."""
        inlet = await self._edges.end(name)
        if actor is None:
            inlet.settle(key)
        else:
            inlet.replace(key, RaySource(actor))

    @ray.method(concurrency_group="watch")  # type: ignore[untyped-decorator]
    async def describe(self) -> str:
        """Say what the host is doing, with its stack; in a thread of its own, whatever the event loop is doing."""
        return f"process {os.getpid()}: {describe_holder(self._loop, self._thread)}"

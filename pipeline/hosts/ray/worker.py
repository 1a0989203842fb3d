"""The Ray actor that runs a host: the host's queue ends, and the calls through which others reach them.

Ray can call actors, but main is not an actor. Main therefore fetches the items that a host produces, and delivers its
own items with calls; control messages work in the same way. Arrays stay in Ray's object store, and readers use them
without a copy.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from typing import Any, NamedTuple

import ray
from ray.exceptions import ActorDiedError, RayError

from headrace.pipeline.common.graph import MAIN
from headrace.pipeline.common.loop_watch import describe_holder
from headrace.pipeline.common.output import complain, prepare_output
from headrace.pipeline.common.process import follow_path_of_main
from headrace.pipeline.control import CONTROL_BOUND, LocalControl
from headrace.pipeline.hosts.process_cleanup import watch_this_process
from headrace.pipeline.hosts.protocol import HostPlan
from headrace.pipeline.hosts.run_host import log_to_main, prepare_for_training, serve
from headrace.queues.call_queue import PullReceiver, PullSender, PushReceiver
from headrace.queues.ends import Receiver, Sender, call_in_loop
from headrace.queues.errors import PeerLost
from headrace.queues.messages import PolicyUpdate
from headrace.stages.user_calls import run_alone
from headrace.startup_context import keep_startup_context

STORED_BYTES = 100_000
"""Minimum size in bytes at which Ray stores a call's argument in its object store. This module stores each of these
arguments once, for all receivers."""


class Caller(NamedTuple):
    """A host that calls other hosts; these serve only its newest incarnation, because an older one may still run."""

    host: str
    incarnation: int = 0
    """Number that is higher for each replacement of the host; 0 for main."""


BY_MAIN = Caller(MAIN)


class RaySource:
    """A host on Ray from which others fetch items.

    Args:
        actor: handle of the host's `RayWorker`.
        caller: the host that fetches.
        refused: called when the host refuses the caller, which main has replaced.
    """

    def __init__(self, actor: Any, caller: Caller = BY_MAIN, refused: Callable[[], object] = lambda: None) -> None:
        self._actor = actor
        self._caller = caller
        self._refused = refused

    async def fetch(self, name: str, taken: int) -> list[Any] | None:
        """Fetch items; see `FetchSource.fetch`."""
        with _lost():  # shielded, because the host answers even if the consumer closes the queue
            answer = await asyncio.shield(self._actor.fetch.remote(self._caller, name, taken))
        if answer is None:
            self._refused()
            raise PeerLost(f"{self._caller.host} was replaced")
        (items,) = answer
        return items  # type: ignore[no-any-return]

    def finish(self, name: str) -> None:
        """End a queue; see `FetchSource.finish`."""
        with suppress(PeerLost), _lost():
            self._actor.finish.remote(self._caller, name)


async def deliver_to(actor: Any, stored: PolicyObjectStore, name: str, number: int, item: Any) -> bool:
    """Deliver an item to a host on Ray, as `headrace.queues.call_queue.Deliver`.

    Args:
        actor: handle of the host's `RayWorker`.
        stored: the items in the object store that several hosts share.
        name: the queue's name.
        number: the item's number.
        item: the item.
    """
    with _lost():
        return await actor.deliver.remote(name, number, stored.shared(item))  # type: ignore[no-any-return]


class PolicyObjectStore:
    """The newest large policy, stored once in Ray's object store for all receivers."""

    def __init__(self) -> None:
        self._last: tuple[Any, Any] = (None, None)

    def shared(self, item: Any) -> Any:
        """Return the item, or a reference to it in the object store if it is a large policy."""
        if not isinstance(item, PolicyUpdate) or item.weights.nbytes < STORED_BYTES:
            return item
        if item is not self._last[0]:
            self._last = item, ray.put(item)
        return self._last[1]


@contextmanager
def _lost() -> Iterator[None]:
    """Raise `PeerLost` if a call in this context fails or Ray has already ended."""
    if not ray.is_initialized():
        raise PeerLost("Ray has ended")
    try:
        yield
    except RayError as error:
        raise PeerLost(str(error)) from error


log = logging.getLogger(__name__)

SWITCH_S = 1e-4
"""Seconds after which a computing thread yields the GIL. Ray's threads handle every call, and each call takes the GIL
several times.
"""
UP, DOWN = "control up", "control down"
"""Names of the control channel's two queues."""
AGAIN_S = 1.0
"""Seconds until a host that can't call itself tries again."""


class RayEdges:
    """The host's queue ends, keyed by name; a call waits until the end that it needs is open.

    The host opens and closes ends in its own event loop; calls arrive in Ray's event loop.

    Args:
        loop: Ray's event loop.
        source: creates a source from another host's actor.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, source: Callable[[Any], RaySource] = RaySource) -> None:
        self._loop = loop
        self._source = source
        self._ends: dict[str, asyncio.Future[Any]] = {}
        self._served: dict[str, PullSender[Any]] = {}
        self._fetching: dict[str, set[asyncio.Task[list[Any] | None]]] = {}
        """Calls that wait for items, keyed by the host that calls."""
        self._newest: dict[str, int] = {}
        """The newest known incarnation of each host that calls, keyed by host name."""

    async def open_sender(self, name: str, address: Mapping[str, Any]) -> Sender[Any]:
        """Create the producing end of a queue, from which other processes fetch items."""
        sender: PullSender[Any] = PullSender(name, address["maxlen"], address["overflow"])
        self._served[name] = sender
        call_in_loop(self._loop, self._open, name, sender)
        return sender

    async def open_receiver(self, name: str, address: Mapping[str, Any]) -> Receiver[Any]:
        """Create the consuming end of a queue; main delivers its items, or this host fetches them from other hosts."""
        bounds = address["maxlen"], address["overflow"]
        sources = {key: self._source(actor) for key, actor in address["sources"].items()}
        receiver: Any = PullReceiver(name, bounds[0], sources, bounds[1]) if sources else PushReceiver(name, *bounds)
        call_in_loop(self._loop, self._open, name, receiver)
        return receiver  # type: ignore[no-any-return]

    def reconnect(self, name: str) -> None:
        """Restart the queue with this name for the consumer that replaces a dead one."""
        if name in self._served:
            self._served[name].reconnect()

    async def end(self, name: str) -> Any:
        """Return a queue end, after waiting until the host has opened it."""
        return await asyncio.shield(self._end(name))

    def admit(self, caller: Caller) -> bool:
        """Refuse all older incarnations of a host from now on; return False if a newer one is known."""
        newest = self._newest.setdefault(caller.host, caller.incarnation)
        if caller.incarnation > newest:
            self._newest[caller.host] = caller.incarnation
            for fetching in self._fetching.get(caller.host, ()):
                fetching.cancel()
        return caller.incarnation >= newest

    async def fetch(self, caller: Caller, name: str, taken: int) -> tuple[list[Any] | None] | None:
        """Return the items of a queue (`PullSender.fetch`) in a tuple; None if the host that calls was replaced."""
        if not self.admit(caller):
            return None
        call = asyncio.create_task(self._fetch(name, taken), name=f"answering {name}")
        calls = self._fetching.setdefault(caller.host, set())
        calls.add(call)
        call.add_done_callback(calls.discard)
        await asyncio.wait([call])
        return None if call.cancelled() else (call.result(),)

    async def _fetch(self, name: str, taken: int) -> list[Any] | None:
        return await (await self.end(name)).fetch(taken)  # type: ignore[no-any-return]

    async def finish(self, caller: Caller, name: str) -> None:
        """End a queue (see `PullSender.finish`), unless the host that calls was replaced."""
        if self.admit(caller):
            (await self.end(name)).finish()

    async def deliver(self, name: str, number: int, item: Any) -> bool:
        """Deliver an item; see `PushReceiver.deliver`."""
        return await (await self.end(name)).deliver(number, item)  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Wait until the readers have fetched all items or are gone."""
        for sender in self._served.values():
            sender.close()
        for sender in self._served.values():
            await sender.wait_closed()

    def _open(self, name: str, end: Any) -> None:
        self._end(name).set_result(end)

    def _end(self, name: str) -> asyncio.Future[Any]:
        if name not in self._ends:
            self._ends[name] = self._loop.create_future()
        return self._ends[name]


class RayWorker:
    """One host in a Ray actor.

    Args:
        plan: the host's plan, as plain data.
        path: main's `sys.path`, if main's folders exist on this machine; if empty, this process keeps its own.
    """

    def __init__(self, plan: Mapping[str, Any], path: Sequence[str]) -> None:
        watch_this_process()  # first, so that games started here end with this process, however it ends
        prepare_output()  # for the output of the user's code
        if path:
            follow_path_of_main(path)
        sys.argv[:] = plan["argv"]
        keep_startup_context()
        self._plan = HostPlan(**plan)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0

    @cached_property
    def _edges(self) -> RayEdges:
        return RayEdges(asyncio.get_running_loop(), self._source)

    def _source(self, actor: Any) -> RaySource:
        refused = partial(self._end, "another host refuses it, because main has replaced it")
        return RaySource(actor, Caller(self._plan.name, self._plan.incarnation), refused)

    async def run(self) -> int:
        """Run the host until it has nothing left to do; return its exit status.

        The host has its own thread and event loop, so calls are answered while a stage computes.
        """
        sys.setswitchinterval(SWITCH_S)
        watching = asyncio.create_task(self._end_when_lost(), name="waiting for Ray's verdict")
        try:
            return await asyncio.to_thread(run_alone, self._run(self._edges))
        finally:
            watching.cancel()

    async def _run(self, edges: RayEdges) -> int:
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        prepare_for_training(self._plan.role)
        bounds = {"maxlen": CONTROL_BOUND, "overflow": "wait", "sources": {}}
        up = await edges.open_sender(UP, bounds)
        control = LocalControl(up, await edges.open_receiver(DOWN, bounds))
        log_to_main(self._plan, control)
        address, node = ray.util.get_node_ip_address(), ray.get_runtime_context().get_node_id()[:8]
        names = (self._plan.name, os.getpid(), socket.gethostname(), address, node)
        log.info("%s runs in process %d of %s (%s, Ray node %s).", *names)
        ended_well = await serve(self._plan, control, edges)
        if ended_well:
            await edges.close()
        else:
            await up.wait_closed()  # type: ignore[attr-defined]
        return 0 if ended_well else 1

    async def _end_when_lost(self) -> None:
        """End this process when Ray counts its actor as dead, after which main replaces the host.

        A process that Ray can't reach, because its node's daemon is stopped or cut off, would live on. Its call to
        itself fails nevertheless, because Ray fails all calls to a dead actor.
        """
        while True:
            try:
                await ray.get_runtime_context().current_actor.stay.remote()
            except ActorDiedError as error:
                self._end(f"Ray counts it as dead: {' '.join(str(error).split())}")
            except RayError:  # a broken connection is not a verdict
                await asyncio.sleep(AGAIN_S)

    async def stay(self) -> None:
        """Never return; the call fails when Ray counts this actor as dead."""
        await asyncio.Event().wait()

    def _end(self, why: str) -> None:
        complain(f"[WARNING] {self._plan.name} in process {os.getpid()} ends itself: {why}.")
        os._exit(1)

    async def admit(self, host: str, incarnation: int) -> None:
        """Refuse all older incarnations of a host; see `RayEdges.admit`."""
        self._edges.admit(Caller(host, incarnation))

    async def fetch(self, caller: Caller, name: str, taken: int) -> tuple[list[Any] | None] | None:
        """Return items; see `RayEdges.fetch`."""
        return await self._edges.fetch(caller, name, taken)

    async def deliver(self, name: str, number: int, item: Any) -> bool:
        """Deliver an item; see `RayEdges.deliver`."""
        return await self._edges.deliver(name, number, item)

    async def finish(self, caller: Caller, name: str) -> None:
        """End a queue; see `RayEdges.finish`."""
        await self._edges.finish(caller, name)

    async def replace(self, name: str, key: str, actor: Any) -> None:
        """Replace a queue's source; see `PullReceiver.replace`."""
        receiver = await self._edges.end(name)
        assert self._loop is not None, "the host has opened this end"
        call_in_loop(self._loop, receiver.replace, key, None if actor is None else self._source(actor))

    @ray.method(concurrency_group="watch")  # type: ignore[untyped-decorator]
    async def describe(self) -> str:
        """Describe what the host is doing, with its stack, even if its event loop is blocked."""
        return f"process {os.getpid()}: {describe_holder(self._loop, self._thread)}"

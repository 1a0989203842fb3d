"""The Ray actor that runs a host: the host's queue ends, and the calls through which others reach them.

Ray can call actors, but main is not an actor. Main therefore fetches the items that a host produces, and delivers its
own items with calls; control messages work in the same way. Arrays stay in Ray's object store, and readers use them
without a copy.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
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


TURNS = 4
"""Number of event-loop turns that a call waits for others to join it. The effects of one message follow within a few
turns, which take less time than a second call.
"""


class Caller(NamedTuple):
    """A host that calls other hosts; these serve only its newest incarnation, because an older one may still run."""

    host: str
    incarnation: int = 0
    """Number that is higher for each replacement of the host; 0 for main."""


BY_MAIN = Caller(MAIN)


class RaySource:
    """A host on Ray from which others fetch items; one call can fetch from several of its queues.

    Args:
        actor: handle of the host's `RayWorker`.
        caller: the host that fetches.
        refused: called when the host refuses the caller, which main has replaced.
    """

    def __init__(self, actor: Any, caller: Caller = BY_MAIN, refused: Callable[[], object] = lambda: None) -> None:
        self._actor = actor
        self._reader = caller, secrets.token_hex(8)
        self._refused = refused
        self._counts: dict[str, int] = {}
        self._waiting: dict[str, asyncio.Future[list[Any] | None]] = {}
        self._next: asyncio.Task[None] | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def fetch(self, name: str, taken: int) -> list[Any] | None:
        """Fetch items; see `FetchSource.fetch`."""
        self._counts[name] = taken
        answer: asyncio.Future[list[Any] | None] = asyncio.get_running_loop().create_future()
        self._waiting[name] = answer
        self._call_soon()
        return await answer

    def finish(self, name: str) -> None:
        """End a queue; see `FetchSource.finish`."""
        with suppress(PeerLost), _lost():
            self._actor.finish.remote(self._reader, name)

    def _call_soon(self) -> None:
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._call(), name="fetching")

    async def _call(self) -> None:
        await _others()
        assert self._next is not None, "this is it"
        call, self._next = self._next, None
        counts, self._counts = self._counts, {}
        self._open.add(call)
        try:
            with _lost():
                answers = await self._actor.fetch.remote(self._reader, counts)
            if answers is None:
                self._refused()
                raise PeerLost(f"{self._reader[0].host} was replaced")
        except PeerLost as error:
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(error)
            self._waiting.clear()
            return
        finally:
            self._open.discard(call)
        for name, items in answers.items():
            answer = self._waiting.pop(name)
            if not answer.done():  # otherwise the consumer has closed the queue
                answer.set_result(items)
        if self._waiting and not self._open:
            self._call_soon()  # for the queues that had no item


class RayDeliveries:
    """Delivers items to a host on Ray.

    Args:
        actor: handle of the host's `RayWorker`.
        stored: the items in the object store that several hosts share.
    """

    def __init__(self, actor: Any, stored: PolicyObjectStore) -> None:
        self._actor = actor
        self._stored = stored
        self._keys: list[tuple[str, int]] = []
        self._items: list[Any] = []
        self._call: asyncio.Task[list[bool]] | None = None

    async def deliver(self, name: str, number: int, item: Any) -> bool:
        """Deliver an item like `Deliver`, but in one call with other items put at the same time.

        The call returns when all its items have been taken, so it suits items that are taken immediately: control
            messages and the newest policies.
        """
        if self._call is None:
            self._call = asyncio.get_running_loop().create_task(self._deliver(), name="delivering")
        index, call = len(self._keys), self._call
        self._keys.append((name, number))
        self._items.append(item)
        return (await asyncio.shield(call))[index]

    async def deliver_alone(self, name: str, number: int, item: Any) -> bool:
        """Deliver an item in a separate call; see `headrace.queues.call_queue.Deliver`."""
        return (await self._send([(name, number)], [item]))[0]

    async def _deliver(self) -> list[bool]:
        await _others()
        keys, items = self._keys, self._items
        self._keys, self._items, self._call = [], [], None
        return await self._send(keys, items)

    async def _send(self, keys: list[tuple[str, int]], items: list[Any]) -> list[bool]:
        with _lost():
            return await self._actor.deliver.remote(keys, *map(self._stored.shared, items))  # type: ignore[no-any-return]


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


async def _others() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


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
ReaderId = tuple[Caller, str]
"""Who calls, and the name of one of its readers."""


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
        self._readers: dict[ReaderId, Reader] = {}
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
            for reader in [key for key in self._readers if key[0].host == caller.host]:
                self._readers.pop(reader).cancel()
        return caller.incarnation >= newest

    async def fetch(self, reader: ReaderId, counts: Mapping[str, int]) -> dict[str, list[Any] | None] | None:
        """Return items for a reader's queues, keyed by name; None if the reader's host was replaced.

        Args:
            reader: the reader.
            counts: number of items that were already taken from each queue, keyed by name.
        """
        if not self.admit(reader[0]):
            return None
        if reader not in self._readers:
            self._readers[reader] = Reader(self)
        return await self._readers[reader].fetch(counts)

    async def finish(self, reader: ReaderId, name: str) -> None:
        """End a queue (see `PullSender.finish`), unless the reader's host was replaced."""
        if self.admit(reader[0]):
            (await self.end(name)).finish()

    async def deliver(self, keys: Sequence[tuple[str, int]], *items: Any) -> list[bool]:
        """Deliver items to several queues, like `PushReceiver.deliver`; each key is an item's queue name and number."""
        return await asyncio.gather(*(self._deliver(*key, item) for key, item in zip(keys, items, strict=True)))

    async def close(self) -> None:
        """Wait until the readers have fetched all items or are gone."""
        for sender in self._served.values():
            sender.close()
        for sender in self._served.values():
            await sender.wait_closed()

    async def _deliver(self, name: str, number: int, item: Any) -> bool:
        return await (await self.end(name)).deliver(number, item)  # type: ignore[no-any-return]

    def _open(self, name: str, end: Any) -> None:
        self._end(name).set_result(end)

    def _end(self, name: str) -> asyncio.Future[Any]:
        if name not in self._ends:
            self._ends[name] = self._loop.create_future()
        return self._ends[name]


class Reader:
    """A reader of several of this host's queues; one call can return items from all of them."""

    def __init__(self, edges: RayEdges) -> None:
        self._edges = edges
        self._fetching: dict[str, asyncio.Task[list[Any] | None]] = {}
        self._changed = asyncio.Event()
        self._calls = 0

    async def fetch(self, counts: Mapping[str, int]) -> dict[str, list[Any] | None]:
        """Start fetching from these queues; return when any queue from this or an earlier call has items.

        If a later call comes first, return nothing: the later call returns the items.
        """
        self._calls += 1
        call = self._calls
        self._changed.set()
        for name, taken in counts.items():
            task = self._fetching[name] = asyncio.create_task(self._fetch(name, taken), name=f"answering {name}")
            task.add_done_callback(lambda _: self._changed.set())
        while not (done := [name for name, task in self._fetching.items() if task.done()]) and call == self._calls:
            self._changed.clear()
            await self._changed.wait()
        return {name: self._fetching.pop(name).result() for name in done}

    def cancel(self) -> None:
        """Take no more items; a call in progress returns none."""
        for task in self._fetching.values():
            task.cancel()
        self._fetching.clear()
        self._calls += 1
        self._changed.set()

    async def _fetch(self, name: str, taken: int) -> list[Any] | None:
        return await (await self._edges.end(name)).fetch(taken)  # type: ignore[no-any-return]


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

    async def fetch(self, reader: ReaderId, counts: Mapping[str, int]) -> dict[str, list[Any] | None] | None:
        """Return items; see `RayEdges.fetch`."""
        return await self._edges.fetch(reader, counts)

    async def deliver(self, keys: Sequence[tuple[str, int]], *items: Any) -> list[bool]:
        """Deliver items; see `RayEdges.deliver`."""
        return await self._edges.deliver(keys, *items)

    async def finish(self, reader: ReaderId, name: str) -> None:
        """End a queue; see `RayEdges.finish`."""
        await self._edges.finish(reader, name)

    async def replace(self, name: str, key: str, actor: Any) -> None:
        """Replace a queue's source; see `PullReceiver.replace`."""
        receiver = await self._edges.end(name)
        assert self._loop is not None, "the host has opened this end"
        call_in_loop(self._loop, receiver.replace, key, None if actor is None else self._source(actor))

    @ray.method(concurrency_group="watch")  # type: ignore[untyped-decorator]
    async def describe(self) -> str:
        """Describe what the host is doing, with its stack, even if its event loop is blocked."""
        return f"process {os.getpid()}: {describe_holder(self._loop, self._thread)}"

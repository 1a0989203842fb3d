"""A queue between two processes on one machine: `SharedSender` and `SharedReceiver`, its two ends.

A put copies the message's arrays into a free slab of shared memory and sends the slab's number: one copy, and no
serialisation. The put waits while `maxlen` items are in flight, or while the consumer has views of every slab.

Items are read-only views of shared memory. A slab returns to its producer when its last view is gone, so a view never
outlives its data. A consumer that keeps views starves only its own producers, so copy any arrays that you keep.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from headrace.queues import codec, links
from headrace.queues.agent_manager_queue import AgentManagerQueue, Producer, QueueStatistics
from headrace.queues.ends import BufferedReceiver
from headrace.queues.errors import QueueClosed, QueueFull
from headrace.queues.links import (
    NO_SLAB,
    BackKind,
    BackReader,
    Channel,
    ForwardKind,
    ForwardReader,
    LinkEnd,
    LinkError,
    Slabs,
    pieces,
)
from headrace.queues.messages import Array, Message
from headrace.queues.platform import poison_returned_slabs

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Message)

STARVING_AFTER_S = 5.0
"""Seconds that a put waits for the consumer to release slabs before a warning is logged."""


@dataclass(slots=True)
class _Parcel:
    """An item, in the form that is sent."""

    header: dict[str, Any]
    arrays: list[Array]
    starts: list[int]
    size: int
    """Number of bytes that the arrays need in a slab; 0 if the item needs no slab."""

    @classmethod
    def of(cls, message: Message) -> _Parcel:
        header, arrays = codec.describe(message)
        starts, total = codec.offsets(header)
        return cls(header, arrays, starts, total)


@dataclass(slots=True, eq=False)
class _Job:
    """A waiting put. Once its first parcel is sent, the others follow, even if the put is cancelled."""

    parcels: deque[_Parcel]
    done: asyncio.Future[bool]
    """Resolves to True once all parcels are sent, or to False if they never will be."""
    since: float
    begun: bool = False

    def end(self, sent: bool) -> None:
        if not self.done.done():
            self.done.set_result(sent)


class SharedSender(Generic[T]):
    """The producer's end of a shared queue; open it with `await SharedSender.open(name, end)`.

    The sender accepts all messages that `codec` supports. A `TrajectoryBatch` larger than a slab is sent in pieces,
    each as a separate item. Puts are served first come, first served. Call all methods from the event loop's thread.
    """

    def __init__(self, name: str, end: LinkEnd) -> None:
        self.name = name
        self.spec = end.spec
        self._slabs = Slabs(end.segment, end.spec)
        self._channel: Channel
        self._reader: BackReader
        self._welcomed = False
        self._free: list[int] = []
        self._untaken = 0
        self._jobs: deque[_Job] = deque()
        self._newest: _Parcel | None = None  # with replace_oldest: the item that waits for a slab
        self._closed = False
        self._ended = False
        self._starving: asyncio.TimerHandle | None = None
        self._warned = False
        self._in = self._out = self._high_water = 0
        self._past_wait_s = 0.0

    @classmethod
    async def open(cls, name: str, end: LinkEnd) -> SharedSender[T]:
        """Open a link end and take ownership of it, without waiting for the receiver to exist."""
        sender = cls(name, end)
        greeting = sender._new_greeting()
        sender._channel = await Channel.open(end.sock, sender._received, sender._lost)
        end.segment.close()
        sender._channel.send(greeting)
        return sender

    def qsize(self) -> int:
        """Return the number of items put but not yet taken, as far as the receiver has reported."""
        if self.spec.overflow == "replace_oldest":
            return int(self._untaken > 0 or self._newest is not None)  # older items are or will be replaced
        return self._untaken

    def put_nowait(self, item: T) -> None:
        """Put an item without waiting.

        Raises:
            QueueFull: if there is no space or no free slab for all its pieces, or other puts are waiting.
            QueueClosed: if the stream has ended or its receiver is gone.
            TooLargeError: if the item is too large for a slab and can't be split.
        """
        if not self._try(self._parcels(item)):
            raise QueueFull(f"queue {self.name!r} is full ({self.qsize()} items of {self.spec.maxlen})")

    async def put(self, item: T) -> None:
        """Put an item, waiting for space and a free slab. A cancelled put delivers the entire item or nothing.

        Raises:
            QueueClosed: if the stream has ended or its receiver is gone, or this happens during the wait.
            TooLargeError: if the item is too large for a slab and can't be split.
        """
        parcels = self._parcels(item)
        if self._try(parcels):
            return
        loop = asyncio.get_running_loop()
        job = _Job(deque(parcels), loop.create_future(), loop.time())
        self._jobs.append(job)
        self._pump()
        try:
            if not await job.done:
                raise QueueClosed(f"queue {self.name!r} was closed, or its receiver disappeared, while put() waited")
        except asyncio.CancelledError:
            if not job.begun and job in self._jobs:
                self._jobs.remove(job)
                self._pump()
            raise
        finally:
            self._past_wait_s += loop.time() - job.since

    def close(self) -> None:
        """End the stream: items already put are delivered; waiting puts raise `QueueClosed`. Closing twice is allowed.

        Before the event loop ends, `await wait_closed()`; otherwise the last items may never arrive.
        """
        if not self._closed:
            self._closed = True
            self._dismiss([job for job in self._jobs if not job.begun])
            self._pump()

    def reconnect(self) -> None:
        """Restart with a receiver that replaces a dead one.

        Items that were sent but not taken may be lost; waiting items go to the new receiver.
        """
        if not self._ended:
            self._channel.send(self._new_greeting())

    async def wait_closed(self) -> None:
        """Wait, after `close`, until the receiver has received every item or is gone."""
        await self._channel.wait_closed()

    def statistics(self) -> QueueStatistics:
        """Return the statistics as this end sees them; pieces count as items, and `items_out` is the number taken."""
        waiting = [job for job in self._jobs if not job.done.done()]
        return QueueStatistics(
            name=self.name,
            items_in=self._in,
            items_out=self._out,
            size=self.qsize(),
            maxlen=self.spec.maxlen,
            high_water=self._high_water,
            put_wait_s=self._past_wait_s + sum(job.done.get_loop().time() - job.since for job in waiting),
            get_wait_s=0.0,
        )

    def _new_greeting(self) -> bytes:
        """Return a HELLO frame; until the receiver replies with WELCOME, this end sends no items."""
        nonce = os.urandom(links.NONCE_BYTES)
        self._welcomed, self._reader = False, BackReader(nonce, self.spec.slabs)
        return links.hello(nonce)

    def _parcels(self, item: T) -> list[_Parcel]:
        if self._closed:
            raise QueueClosed(f"queue {self.name!r} is closed")
        whole = _Parcel.of(item)
        if whole.size <= self.spec.slab_bytes:
            return [whole]
        return [_Parcel.of(piece) for piece in pieces(item, self.spec.slab_bytes)]

    def _try(self, parcels: list[_Parcel]) -> bool:
        if self.spec.overflow == "replace_oldest":
            # A policy is always one piece, because only batches are split.
            (self._newest,) = parcels
            self._pump()
            return True
        slabs = sum(parcel.size > 0 for parcel in parcels)
        if self._jobs or not self._welcomed:
            return False
        if slabs > len(self._free) or len(parcels) > self.spec.maxlen - self._untaken:
            return False
        for parcel in parcels:
            self._send(parcel)
        return True

    def _pump(self) -> None:
        """Send waiting items while there is space, and then END if the stream is closed."""
        while self._jobs and self._may_send(self._jobs[0].parcels[0]):
            job = self._jobs[0]
            job.begun = True
            self._send(job.parcels.popleft())
            if not job.parcels:
                self._jobs.popleft()
                job.end(sent=True)
        if self._newest is not None and self._may_send(self._newest):
            newest, self._newest = self._newest, None
            self._send(newest)
        if self._closed and not self._ended and not self._jobs and self._newest is None:
            self._ended = True
            self._channel.send(links.end())
            self._channel.finish()
        self._watch_for_starvation()

    def _may_send(self, parcel: _Parcel) -> bool:
        # A newer policy replaces the older one at the receiver, so the number of slabs is its only limit.
        has_room = self._untaken < self.spec.maxlen or self.spec.overflow == "replace_oldest"
        return self._welcomed and has_room and (bool(self._free) or parcel.size == 0)

    def _send(self, parcel: _Parcel) -> None:
        slab = NO_SLAB
        if parcel.size:
            slab = self._free.pop()  # the slab returned last is still in the CPU's caches
            self._slabs.write(slab, parcel.arrays, parcel.starts)
        self._channel.send(links.item(slab, parcel.header))
        self._in += 1
        self._untaken += 1
        self._high_water = max(self._high_water, self.qsize())

    def _received(self, data: bytes) -> None:
        for kind, slab, used in self._reader.feed(data):
            match kind:
                case BackKind.WELCOME:
                    self._welcomed = True
                    self._untaken = slab
                    self._free = [number for number, flag in enumerate(used) if not flag]
                case BackKind.TAKEN:
                    self._untaken -= 1
                    self._out += 1
                case BackKind.FREE:
                    self._free.append(slab)
                case BackKind.CLOSED:
                    self._channel.close()
                    self._receiver_gone()
        self._pump()

    def _lost(self) -> None:
        if not self._ended:
            self._receiver_gone()

    def _receiver_gone(self) -> None:
        self._closed = self._ended = True
        self._newest = None
        self._dismiss(list(self._jobs))
        self._watch_for_starvation()

    def _dismiss(self, jobs: list[_Job]) -> None:
        for job in jobs:
            self._jobs.remove(job)
            job.end(sent=False)

    def _watch_for_starvation(self) -> None:
        first = self._jobs[0].parcels[0] if self._jobs else self._newest
        awake = self._welcomed and self._untaken < self.spec.maxlen  # the consumer has sent WELCOME, and takes items
        starved = first is not None and awake and not self._ended
        if starved and self._starving is None and not self._warned:
            self._starving = asyncio.get_running_loop().call_later(STARVING_AFTER_S, self._warn)
        elif not starved and self._starving is not None:
            self._starving.cancel()
            self._starving = None

    def _warn(self) -> None:
        self._warned = True
        log.warning(
            "queue %r: a put has waited for %.0f s because the consumer still uses %d of %d slabs. A consumer must "
            "copy the data that it keeps from a batch, or the link needs more spare slabs.",
            self.name,
            STARVING_AFTER_S,
            self.spec.slabs - self._untaken,
            self.spec.slabs,
        )


@dataclass(frozen=True, slots=True)
class _Arrival:
    """An item that has arrived but has not been taken yet."""

    link: _Link
    slab: int
    header: dict[str, Any]


class SharedReceiver(BufferedReceiver[_Arrival, T]):
    """The consumer's end of a shared queue; open it with `await SharedReceiver.open(name, ends)`.

    The receiver has one link to each producer, and returns items in the order of arrival. Each producer is limited by
    its own link, so none can crowd out another. The stream ends when every link has ended, because its producer has
    called `close` or has died. The link of a killed producer stays open as long as another process holds
    that end, and a new producer can continue on it. A new receiver can also replace a killed one, once its producers
    have called `SharedSender.reconnect`.

    `get` raises `ShapeError` if the item's arrays do not fit together. A cancelled get removes nothing.

    Call all methods from the event loop's thread; views may be released in any thread.
    """

    def __init__(self, name: str, ends: Sequence[LinkEnd], succeeds: bool = False) -> None:
        overflow = ends[0].spec.overflow  # the same for all links
        maxlen = 1 if overflow == "replace_oldest" else sum(end.spec.maxlen for end in ends)
        super().__init__(
            name, AgentManagerQueue(name, maxlen, overflow, on_replaced=lambda arrival: arrival.link.drop(arrival.slab))
        )
        self._links = [_Link(name, i, end, self._arrivals, succeeds) for i, end in enumerate(ends)]

    @classmethod
    async def open(cls, name: str, ends: Sequence[LinkEnd], succeeds: bool = False) -> SharedReceiver[T]:
        """Open link ends and take ownership of them; `succeeds` is True if a receiver that died used them before."""
        receiver = cls(name, ends, succeeds)
        for link, end in zip(receiver._links, ends, strict=True):
            await link.open(end)
        return receiver

    @property
    def slabs_in_use(self) -> int:
        """Number of slabs that are not yet taken or still have views, summed over all links."""
        return sum(len(link.used) for link in self._links)

    def close(self) -> None:
        """Refuse more items: producers' puts raise `QueueClosed`. Items that have arrived remain available.

        Closing twice is allowed.
        """
        for link in self._links:
            link.close()
        self._arrivals.close()

    async def wait_closed(self) -> None:
        """Wait, after `close` or the end of the stream, until the sockets are closed."""
        for link in self._links:
            await link.channel.wait_closed()

    def _take(self, arrival: _Arrival) -> T:
        # The links carry the items that a SharedSender[T] put; the caller ensures that both ends have the same T.
        return cast("T", arrival.link.take(arrival.slab, arrival.header))


class _Link:
    """The consumer's side of one link: tracks the slabs in use, and replies to the producer."""

    def __init__(
        self, name: str, index: int, end: LinkEnd, arrivals: AgentManagerQueue[_Arrival], succeeds: bool
    ) -> None:
        self.used: set[int] = set()
        self.channel: Channel
        self._label = f"queue {name!r}, link {index}"
        self._spec = end.spec
        self._slabs = Slabs(end.segment, end.spec)
        self._arrivals: Producer[_Arrival] = arrivals.add_producer()
        self._reader = ForwardReader(succeeds)
        self._untaken = 0
        self._ended = False
        self._poison = poison_returned_slabs()
        self._unused: deque[int] = deque()
        self._return_due = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    async def open(self, end: LinkEnd) -> None:
        self.channel = await Channel.open(end.sock, self._received, self._lost)
        end.segment.close()

    def take(self, slab: int, header: dict[str, Any]) -> Message:
        """Return the message in a slab. The message's arrays are views of the slab."""
        self._forget(slab)
        if slab == NO_SLAB:
            return codec.build(header, codec.read_arrays(header, b""))
        return codec.build(header, self._slabs.read(slab, header, self._no_longer_used))

    def drop(self, slab: int) -> None:
        """Return the slab of an item that will not be taken."""
        self._forget(slab)
        if slab != NO_SLAB:
            self._no_longer_used(slab)

    def close(self) -> None:
        if not self._ended:
            self._ended = True
            self.channel.send(links.back(BackKind.CLOSED))
            self.channel.finish()  # ends the wait of a producer without a WELCOME, even if others hold this end
            self.channel.close()

    def _forget(self, slab: int) -> None:
        self._untaken -= 1
        # Return slabs first, because the producer needs them and the rest may keep the event loop busy for long.
        self._return(links.back(BackKind.TAKEN, slab))

    def _no_longer_used(self, slab: int) -> None:
        """Record that a slab can be returned, and do nothing else, because this may run in any thread."""
        self._unused.append(slab)
        if not self._return_due:
            self._return_due = True
            here = threading.get_ident() == self._thread
            with contextlib.suppress(RuntimeError):  # the loop is closed, so no producer is left
                (self._loop.call_soon if here else self._loop.call_soon_threadsafe)(self._return)

    def _return(self, reply: bytes = b"") -> None:
        """Send a reply and return all free slabs in one write, because each write wakes up the producer."""
        self._return_due = False  # reset first, so a slab recorded later triggers another call
        while self._unused:
            slab = self._unused.popleft()
            if self._poison:
                self._slabs.poison(slab)
            self.used.discard(slab)
            reply += links.back(BackKind.FREE, slab)
        if reply:
            self.channel.send(reply)

    def _received(self, data: bytes) -> None:
        try:
            for kind, body in self._reader.feed(data):
                self._handle(kind, body)
        except LinkError as error:
            log.error("%s: closed, because the producer sent %s", self._label, error)
            self.channel.close()
            self._lost()

    def _handle(self, kind: ForwardKind, body: bytes) -> None:
        if self._ended:
            return
        match kind:
            case ForwardKind.HELLO:
                self.channel.send(links.welcome(body, self._untaken, sorted(self.used), self._spec.slabs))
            case ForwardKind.ITEM:
                slab, header = links.read_item(body, self._spec)
                if slab in self.used:
                    raise LinkError(f"an item in slab {slab}, which is in use")
                if self._untaken >= self._spec.maxlen and self._spec.overflow == "wait":
                    raise LinkError(f"more than {self._spec.maxlen} items")
                if slab != NO_SLAB:
                    self.used.add(slab)
                self._untaken += 1
                self._arrivals.put_nowait(_Arrival(self, slab, header))
            case ForwardKind.END:
                self._ended = True
                self._arrivals.close()
                self.channel.close()

    def _lost(self) -> None:
        self._ended = True
        self._arrivals.close()

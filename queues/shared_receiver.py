"""The consumer's end of a queue between processes on one machine; `shared_sender` is the other end.

Items are read-only views of shared memory. A slab returns to its producer when its last view is gone, so a view never
outlives its data. A consumer that keeps views starves only its own producers, so copy any arrays that you keep.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from headrace.queues import codec, links
from headrace.queues.agent_manager_queue import AgentManagerQueue, Producer
from headrace.queues.ends import BufferedReceiver
from headrace.queues.links import NO_SLAB, BackKind, Channel, ForwardKind, ForwardReader, LinkEnd, LinkError
from headrace.queues.messages import Message
from headrace.queues.platform import poison_returned_slabs
from headrace.queues.slabs import Slabs

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Message)


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
    called `close` or has died (see `broken`). The link of a killed producer stays open as long as another process holds
    that end, and a new producer can continue on it. A new receiver can also replace a killed one, once its producers
    have called `SharedSender.renew`.

    `get` and `get_nowait` raise `ShapeError` if the item's arrays do not fit together. A cancelled get removes nothing.

    Call all methods from the event loop's thread; views may be released in any thread.

    Raises:
        ValueError: if there is no link, or the links differ in `overflow`.
    """

    def __init__(self, name: str, ends: Sequence[LinkEnd], succeeds: bool = False) -> None:
        if not ends:
            raise ValueError(f"queue {name!r}: a receiver needs at least one link")
        overflow = ends[0].spec.overflow
        if any(end.spec.overflow != overflow for end in ends):
            raise ValueError(f"queue {name!r}: all links must have the same overflow")
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

    async def __aenter__(self) -> SharedReceiver[T]:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
        await self.wait_closed()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self.qsize()}/{self.maxlen} of {len(self._links)} links>"

    @property
    def maxlen(self) -> int:
        """Maximum number of items put but not yet taken, summed over all links."""
        return self._arrivals.maxlen

    @property
    def closed(self) -> bool:
        """True if every producer has ended, although items may be left."""
        return self._arrivals.closed

    @property
    def broken(self) -> tuple[int, ...]:
        """Indices of the links whose producers died without closing their end."""
        return tuple(link.index for link in self._links if link.broken)

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
        self.index = index
        self.used: set[int] = set()
        self.broken = False
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
        if not self._ended:
            self._ended = self.broken = True
            self._arrivals.close()

"""A queue whose producer can't reach its consumer, but can be called by it: the consumer fetches what was put.

The producer's end, `PullOutlet`, keeps what was put until the consumer has taken it, and answers calls. The
consumer's end, `PullInlet`, calls one producer or several, each a `FetchSource`; what carries the calls is no
concern of these two. `push` is the same in the other direction.

A call may cost a millisecond, so there is one kind alone: it waits for items, brings all there are, and says how many
of the former ones were taken. It is made as soon as the last one is answered, so that items come while the consumer
computes, but not before the producer has room: a producer that is fetched from has some, when it is told.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from headrace.queues.agent_manager_queue import AgentManagerQueue, Overflow, Producer
from headrace.queues.ends import ArrivalsInlet, RoomOutlet, post
from headrace.queues.errors import PeerLost, QueueClosed

T = TypeVar("T")

CALL_TURNS = 8
"""Turns of the event loop in which a call that was begun leaves, before the consumer gets what the last one brought: it
may compute for long, and the next items arrive meanwhile."""


class FetchSource(Protocol):
    """A producer as its consumer calls it."""

    async def fetch(self, name: str, taken: int) -> list[Any] | None:
        """Return what was put and not fetched yet, waiting while there is nothing; None at the end of the stream.

        Args:
            name: the queue's.
            taken: items that were taken since the call before: there is room for others.

        Raises:
            PeerLost: if the producer has died.
        """

    def finish(self, name: str) -> None:
        """Tell the producer, without waiting, that nothing more is fetched."""


# Ray has no inherited sockets, so the consumer calls, and items wait where they were made (docs/decisions/014).
class PullOutlet(RoomOutlet[T]):
    """The producer's end: `maxlen` items that were put and not taken, wherever they are; then puts wait.

    With `overflow="replace_oldest"` a newer item replaces one that was not fetched.

    Calls of the consumer may come in the event loop of another thread, and are answered whatever the producer is doing.
    """

    def __init__(self, name: str, maxlen: int, overflow: Overflow = "wait") -> None:
        super().__init__(name, maxlen, overflow)
        self._home = asyncio.get_running_loop()
        self._unfetched: deque[T] = deque()
        self._lock = threading.Lock()
        """Of what was not fetched."""
        self._calls: asyncio.AbstractEventLoop | None = None
        """Where calls come."""
        self._changed = asyncio.Event()
        """In that event loop: there may be an answer now."""
        self._finished = asyncio.Event()
        self._consumers = 1

    def close(self) -> None:
        """End the stream: items already put are delivered, waiting puts raise `QueueClosed`."""
        self._room.close()
        self._tell_calls()

    def renew(self) -> None:
        """Begin anew with the consumer that takes the place of a dead one; what that had fetched is lost."""
        self._consumers += 1
        self._forget_fetched()
        self._tell_calls()

    async def wait_closed(self) -> None:
        """After `close`: wait until the consumer has received everything, or is gone."""
        await self._finished.wait()

    # Calls of the consumer. ------------------------------------------------------------------------------------------

    async def fetch(self, taken: int) -> list[T] | None:
        """As `FetchSource.fetch`; nothing to a consumer that waits as `renew` is called: if it lives, it asks again."""
        self._calls = asyncio.get_running_loop()
        consumer = self._consumers
        if taken:
            post(self._home, self._make_room, taken)
        while True:
            self._changed.clear()  # before the look: what comes after that sets it again
            ended = self._room.closed
            with self._lock:
                items, self._unfetched = list(self._unfetched), deque()
            if items:
                if self._room.overflow == "replace_oldest":
                    post(self._home, self._forget_fetched)
                return items
            if ended:
                return None
            await self._changed.wait()
            if consumer != self._consumers:
                return []

    def finish(self) -> None:
        """As `FetchSource.finish`: what was not fetched is dropped, and puts raise `QueueClosed`."""
        post(self._home, self._finish)

    def _finish(self) -> None:
        self._room.close()
        with self._lock:
            self._unfetched.clear()
        self._forget_fetched()
        self._tell_calls()
        self._finished.set()

    def _make_room(self, count: int) -> None:
        for _ in range(min(count, self._room.qsize())):
            self._room.get_nowait()

    def _forget_fetched(self) -> None:
        with self._lock:
            unfetched = len(self._unfetched)
        self._make_room(self._room.qsize() - unfetched)

    def _send(self, item: T) -> None:
        with self._lock:
            if self._room.overflow == "replace_oldest":
                self._unfetched.clear()
            self._unfetched.append(item)
        self._tell_calls()

    def _tell_calls(self) -> None:
        if self._calls is not None:
            post(self._calls, self._changed.set)


class _Tally:
    """The items of one producer: how many it counts as not taken, and how many of these were taken since it was told.

    Args:
        maxlen: the producer's bound.
    """

    def __init__(self, maxlen: int) -> None:
        self._maxlen = maxlen
        self._held = self._taken = 0
        self._some = asyncio.Event()

    def fetched(self, count: int) -> None:
        """So many have come."""
        self._held += count

    def take(self) -> None:
        """One was taken."""
        self._taken += 1
        self._some.set()

    @property
    def has_room(self) -> bool:
        """True if the producer, once told of what was taken, can put another item; else a call would bring nothing."""
        return self._held - self._taken < self._maxlen

    async def wait_for_room(self) -> None:
        """Wait until some were taken."""
        await self._some.wait()

    def tell(self) -> int:
        """Return how many were taken since the last time."""
        self._some.clear()
        count, self._taken = self._taken, 0
        self._held -= count
        return count


@dataclass(slots=True)
class _Fetched(Generic[T]):
    """An item that was fetched and not taken yet."""

    item: T
    tally: _Tally


class _Place:
    """One of the producers of a queue: whoever produces there now, and what is known of a successor."""

    def __init__(self, source: FetchSource) -> None:
        self.source = source
        self._successor: FetchSource | None = None
        self._settled = False
        self._changed = asyncio.Event()

    def succeed(self, source: FetchSource | None) -> None:
        """Name the successor of a producer that is dead or will be; None: there is none."""
        self._successor, self._settled = source, source is None
        self._changed.set()

    async def next(self) -> bool:
        """Wait for the successor and let it be the producer; False if there is none."""
        while self._successor is None and not self._settled:
            self._changed.clear()
            await self._changed.wait()
        if self._successor is None:
            return False
        self.source, self._successor = self._successor, None
        return True


class PullInlet(ArrivalsInlet[_Fetched[T], T]):
    """The consumer's end; it returns items in the order of their arrival.

    The stream ends when the last producer has ended its own. A producer that dies without having ended its stream may
    have a successor, which `replace` names; `settle` says that there will be none.

    Args:
        name: the queue's.
        maxlen: the bound of each producer.
        sources: the producers.
        overflow: as in `AgentManagerQueue`.
    """

    def __init__(self, name: str, maxlen: int, sources: Mapping[str, FetchSource], overflow: Overflow = "wait") -> None:
        bound = maxlen if overflow == "replace_oldest" else maxlen * len(sources)
        super().__init__(name, AgentManagerQueue(name, bound, overflow))
        self._maxlen = maxlen
        self._places = {key: _Place(source) for key, source in sources.items()}
        ends = [self._arrivals.add_producer() for _ in sources]  # all of them before the first one can close
        self._tasks = [
            asyncio.create_task(self._pull(place, end), name=f"fetching {name}")
            for place, end in zip(self._places.values(), ends, strict=True)
        ]

    def replace(self, key: str, source: FetchSource) -> None:
        """Let another producer take the place of a dead one."""
        self._places[key].succeed(source)

    def settle(self, key: str) -> None:
        """A producer is never replaced: its death ends its stream."""
        self._places[key].succeed(None)

    def close(self) -> None:
        """Refuse further items: producers' puts raise `QueueClosed`. Items that have arrived can still be taken."""
        self._arrivals.close()
        for place, task in zip(self._places.values(), self._tasks, strict=True):
            if not task.done():
                task.cancel()
                place.source.finish(self.name)

    def _take(self, arrival: _Fetched[T]) -> T:
        arrival.tally.take()
        return arrival.item

    async def _pull(self, place: _Place, end: Producer[_Fetched[T]]) -> None:
        try:
            with suppress(QueueClosed):
                while not await self._pull_all(place.source, end):
                    if not await place.next():
                        break
        finally:
            end.close()

    async def _pull_all(self, source: FetchSource, end: Producer[_Fetched[T]]) -> bool:
        """Fetch to the end of the stream; False if the producer died before."""
        tally = _Tally(self._maxlen)
        call = asyncio.ensure_future(source.fetch(self.name, 0))
        try:
            while (items := await call) is not None:
                if self._arrivals.overflow == "wait":
                    tally.fetched(len(items))
                if early := tally.has_room:
                    call = asyncio.ensure_future(source.fetch(self.name, tally.tell()))
                    for _ in range(CALL_TURNS):
                        await asyncio.sleep(0)
                for item in items:
                    await end.put(_Fetched(item, tally))
                items.clear()
                if not early:
                    await tally.wait_for_room()
                    call = asyncio.ensure_future(source.fetch(self.name, tally.tell()))
        except PeerLost:
            return False
        finally:
            call.cancel()
        source.finish(self.name)
        return True

"""A queue whose producer can't reach its consumer, but can be called by it: the consumer fetches what was put.

The producer's end, `ServedOutlet`, keeps what was put until the consumer has taken it, and answers calls. The
consumer's end, `FetchingInlet`, calls one producer or several, each a `FetchSource`; what carries the calls is no
concern of these two. `delivered` is the same in the other direction.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from queues.agent_manager_queue import AgentManagerQueue, Producer
from queues.arrivals import ArrivalsInlet
from queues.ends import Overflow, QueueStatistics
from queues.errors import PeerLost, QueueClosed

T = TypeVar("T")


class FetchSource(Protocol):
    """A producer as its consumer calls it."""

    async def fetch(self, name: str) -> list[Any] | None:
        """Return what was put and not fetched yet, waiting while there is nothing; None at the end of the stream.

        Raises:
            PeerLost: if the producer has died.
        """
        ...

    def taken(self, name: str, count: int) -> None:
        """Tell the producer, without waiting, that so many items were taken: there is room for others."""
        ...

    def finish(self, name: str) -> None:
        """Tell the producer, without waiting, that nothing more is fetched."""
        ...


class ServedOutlet(Generic[T]):
    """The producer's end: `maxlen` items that were put and not taken, wherever they are; then puts wait.

    With `overflow="replace_oldest"` a newer item replaces one that was not fetched.
    """

    def __init__(self, name: str, maxlen: int, overflow: Overflow = "wait") -> None:
        self.name = name
        self._room: AgentManagerQueue[T] = AgentManagerQueue(name, maxlen, overflow)
        self._unfetched: deque[T] = deque()
        self._changed = asyncio.Event()
        self._finished = asyncio.Event()

    async def put(self, item: T) -> None:
        """Put an item, waiting for room; a put that is cancelled delivers nothing.

        Raises:
            QueueClosed: if the stream was ended or its consumer is gone, before or while waiting.
        """
        await self._room.put(item)
        self._note(item)

    def put_nowait(self, item: T) -> None:
        """Put an item at once, or raise `QueueFull` or `QueueClosed`."""
        self._room.put_nowait(item)
        self._note(item)

    def close(self) -> None:
        """End the stream: items already put are delivered, waiting puts raise `QueueClosed`."""
        self._room.close()
        self._changed.set()

    def qsize(self) -> int:
        """Items put and not yet taken."""
        return self._room.qsize()

    def statistics(self) -> QueueStatistics:
        """A snapshot of the counts as this end sees them."""
        return self._room.statistics()

    async def wait_closed(self) -> None:
        """After `close`: wait until the consumer has received everything, or is gone."""
        await self._finished.wait()

    # Calls of the consumer. ------------------------------------------------------------------------------------------

    async def fetch(self) -> list[T] | None:
        """As `FetchSource.fetch`."""
        while not self._unfetched:
            if self._room.closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        items = list(self._unfetched)
        self._unfetched.clear()
        if self._room.overflow == "replace_oldest":
            self.taken(self._room.qsize())
        return items

    def taken(self, count: int) -> None:
        """As `FetchSource.taken`."""
        for _ in range(min(count, self._room.qsize())):
            self._room.get_nowait()

    def finish(self) -> None:
        """As `FetchSource.finish`: what was not fetched is dropped, and puts raise `QueueClosed`."""
        self._unfetched.clear()
        self._room.close()
        self.taken(self._room.qsize())
        self._changed.set()
        self._finished.set()

    def _note(self, item: T) -> None:
        if self._room.overflow == "replace_oldest":
            self._unfetched.clear()
        self._unfetched.append(item)
        self._changed.set()


@dataclass(slots=True)
class _Fetched(Generic[T]):
    """An item that was fetched and not taken yet."""

    item: T
    source: FetchSource


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


class FetchingInlet(ArrivalsInlet[_Fetched[T], T]):
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
        arrival.source.taken(self.name, 1)
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
        try:
            while (items := await source.fetch(self.name)) is not None:
                for item in items:
                    await end.put(_Fetched(item, source))
                del items
        except PeerLost:
            return False
        source.finish(self.name)
        return True

"""The two ends of a queue as stages see them, and base classes for the ends of queues between processes.

Stages are typed against `Sender` and `Receiver`. A stage therefore does not know whether a queue stays within one event
loop (`agent_manager_queue`), crosses to another process through shared memory (`shared_queue`), or is carried by calls
to whichever end can be called (`call_queue`).

Those calls may arrive in another thread's event loop, so they can be answered while a stage computes; `call_in_loop`
passes work from one loop to the other.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, Protocol, Self, TypeVar

from headrace.queues.agent_manager_queue import AgentManagerQueue, Overflow, QueueStatistics
from headrace.queues.errors import QueueClosed

T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)


class ItemSink(Protocol[T_contra]):
    """The part of a queue's producer end that the stages' loop needs."""

    async def put(self, item: T_contra) -> None:
        """Put an item, waiting while the queue is full."""

    def close(self) -> None:
        """Close this producer's end of the stream."""


class ItemSource(Protocol[T_co]):
    """The part of a queue's consumer end that the stages' loop needs.

    `async for` stops once the queue is closed and drained.
    """

    def __aiter__(self) -> AsyncIterator[T_co]: ...

    def close(self) -> None:
        """Refuse more items: waiting and later puts raise `QueueClosed`."""


class Sender(ItemSink[T_contra], Protocol[T_contra]):
    """The producer's end of a queue."""

    @property
    def name(self) -> str:
        """The queue's name."""

    def put_nowait(self, item: T_contra) -> None:
        """Put an item without waiting, or raise `QueueFull`."""

    def qsize(self) -> int:
        """Return the number of items put but not yet taken."""

    def statistics(self) -> QueueStatistics:
        """Return a snapshot of the statistics."""


class Receiver(ItemSource[T_co], Protocol[T_co]):
    """The consumer's end of a queue."""

    @property
    def name(self) -> str:
        """The queue's name."""

    async def get(self) -> T_co:
        """Remove and return the next item, waiting while the queue is empty."""

    def qsize(self) -> int:
        """Return the number of items put but not yet taken."""

    def statistics(self) -> QueueStatistics:
        """Return a snapshot of the statistics."""

    async def __anext__(self) -> T_co: ...


A = TypeVar("A")
T = TypeVar("T")


class BoundedSender(ABC, Generic[T]):
    """The producer's end of a queue whose items are sent by calls between processes.

    At most `maxlen` items can be put but not yet taken, including items in transit.

    Args:
        name: the queue's name.
        maxlen: number of items at which puts start to wait.
        overflow: as in `AgentManagerQueue`.
    """

    def __init__(self, name: str, maxlen: int, overflow: Overflow) -> None:
        self.name = name
        self._room: AgentManagerQueue[T] = AgentManagerQueue(name, maxlen, overflow)

    async def put(self, item: T) -> None:
        """Put an item, waiting for space. A cancelled put delivers nothing.

        Raises:
            QueueClosed: if the stream has ended or its consumer is gone, or this happens during the wait.
        """
        await self._room.put(item)
        self._send(item)

    def put_nowait(self, item: T) -> None:
        """Put an item without waiting, or raise `QueueFull` or `QueueClosed`."""
        self._room.put_nowait(item)
        self._send(item)

    def qsize(self) -> int:
        """Return the number of items put but not yet taken."""
        return self._room.qsize()

    def statistics(self) -> QueueStatistics:
        """Return a snapshot of the statistics as this end sees them."""
        return self._room.statistics()

    @abstractmethod
    def _send(self, item: T) -> None:
        """Send an item to the consumer. Called only when there is room for it."""


class BufferedReceiver(ABC, Generic[A, T]):
    """The consumer's end of a queue from another process, which returns items in the order of arrival.

    Args:
        name: the queue's name.
        arrivals: queue of items that have arrived but are not yet taken, filled by the subclass.
    """

    def __init__(self, name: str, arrivals: AgentManagerQueue[A]) -> None:
        self.name = name
        self._arrivals = arrivals

    async def get(self) -> T:
        """Remove and return the next item, waiting while the queue is empty.

        Raises:
            QueueClosed: if nothing is left and every producer has ended, or this happens during the wait.
        """
        return self._take(await self._arrivals.get())

    def qsize(self) -> int:
        """Return the number of items that have arrived but are not yet taken."""
        return self._arrivals.qsize()

    def statistics(self) -> QueueStatistics:
        """Return a snapshot of the statistics as this end sees them."""
        return self._arrivals.statistics()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        try:
            return await self.get()
        except QueueClosed:
            raise StopAsyncIteration from None

    @abstractmethod
    def _take(self, arrival: A) -> T:
        """Report to the producer that an item has been taken, and return the item."""


def call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: Any) -> bool:
    """Schedule a call in an event loop, from any thread; return False if the loop is closed."""
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        return False
    return True

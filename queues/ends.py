"""The two ends of a queue as stages see them, and the statistics of every kind of queue.

Stages are typed against `Outlet` and `Inlet`, so that they never notice whether a queue stays within one
event loop (`agent_manager_queue`), crosses to another process (`shared_sender`, `shared_receiver`), or is carried by
calls of the one end that can be called (`served`, `delivered`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

Overflow = Literal["wait", "replace_oldest"]

T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """Counts of a queue, or of one end of it. Waits that still last are counted up to now."""

    name: str
    items_in: int
    items_out: int
    size: int
    """Items put and not yet taken."""
    maxlen: int
    high_water: int
    """The largest size ever."""
    waiting_putters: int
    waiting_getters: int
    put_wait_s: float
    """Seconds that producers waited for room, added up over producers: backpressure."""
    get_wait_s: float
    """Seconds that consumers waited for an item, added up over consumers: starvation."""
    replaced: int
    """Items that a newer one pushed out (`overflow="replace_oldest"` only)."""


class ItemSink(Protocol[T_contra]):
    """An outlet as the loop of stages needs it."""

    async def put(self, item: T_contra) -> None:
        """Put an item; waits while the queue is full."""
        ...

    def close(self) -> None:
        """End this producer's part of the stream."""
        ...


class ItemSource(Protocol[T_co]):
    """An inlet as the loop of stages needs it; `async for` over it ends when the queue is closed and drained."""

    def __aiter__(self) -> AsyncIterator[T_co]: ...

    def close(self) -> None:
        """Refuse further items: waiting and later puts raise `QueueClosed`."""
        ...


class Outlet(ItemSink[T_contra], Protocol[T_contra]):
    """The producer's end of a queue."""

    @property
    def name(self) -> str:
        """The queue's name."""
        ...

    def put_nowait(self, item: T_contra) -> None:
        """Put an item at once, or raise `QueueFull`."""
        ...

    def qsize(self) -> int:
        """Items put and not yet taken."""
        ...

    def statistics(self) -> QueueStatistics:
        """A snapshot of the counts."""
        ...


class Inlet(ItemSource[T_co], Protocol[T_co]):
    """The consumer's end of a queue."""

    @property
    def name(self) -> str:
        """The queue's name."""
        ...

    async def get(self) -> T_co:
        """Remove and return the next item; waits while the queue is empty."""
        ...

    def get_nowait(self) -> T_co:
        """Remove and return the next item at once, or raise `QueueEmpty`."""
        ...

    def qsize(self) -> int:
        """Items put and not yet taken."""
        ...

    def statistics(self) -> QueueStatistics:
        """A snapshot of the counts."""
        ...

    async def __anext__(self) -> T_co: ...

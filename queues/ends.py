"""The two ends of a queue as its users see them, and the statistics that every kind of queue gives.

Stages are typed against `Outlet` and `Inlet`, so that they never notice whether a queue stays within one
event loop (`agent_manager_queue`) or crosses to another process (`shared_sender`, `shared_receiver`).
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
    """What a queue, or one end of it, has seen so far. Waits that still last are counted up to now."""

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


class Outlet(Protocol[T_contra]):
    """Where a producer puts."""

    @property
    def name(self) -> str:
        """The queue's name."""
        ...

    async def put(self, item: T_contra) -> None:
        """Put an item; waits while the queue is full."""
        ...

    def put_nowait(self, item: T_contra) -> None:
        """Put an item at once, or raise `QueueFull`."""
        ...

    def close(self) -> None:
        """Say that this producer puts no more."""
        ...

    def qsize(self) -> int:
        """Items put and not yet taken."""
        ...

    def statistics(self) -> QueueStatistics:
        """A snapshot of the counts."""
        ...


class Inlet(Protocol[T_co]):
    """Where a consumer gets; `async for` over it ends when the queue is closed and drained."""

    @property
    def name(self) -> str:
        """The queue's name."""
        ...

    async def get(self) -> T_co:
        """Take the next item; waits while the queue is empty."""
        ...

    def get_nowait(self) -> T_co:
        """Take the next item at once, or raise `QueueEmpty`."""
        ...

    def close(self) -> None:
        """Say that nobody will take any more: waiting and later putters get `QueueClosed`."""
        ...

    def qsize(self) -> int:
        """Items put and not yet taken."""
        ...

    def statistics(self) -> QueueStatistics:
        """A snapshot of the counts."""
        ...

    def __aiter__(self) -> AsyncIterator[T_co]: ...

    async def __anext__(self) -> T_co: ...

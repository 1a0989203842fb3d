"""The consumer's end of a queue whose items arrive by calls: what `served` and `delivered` have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, Self, TypeVar

from queues.agent_manager_queue import AgentManagerQueue
from queues.ends import QueueStatistics
from queues.errors import QueueClosed

A = TypeVar("A")
T = TypeVar("T")


class ArrivalsInlet(ABC, Generic[A, T]):
    """Returns the items of arrivals in the order of these.

    Args:
        name: the queue's.
        arrivals: what has arrived and was not taken yet; a subclass puts into it.
    """

    def __init__(self, name: str, arrivals: AgentManagerQueue[A]) -> None:
        self.name = name
        self._arrivals = arrivals

    async def get(self) -> T:
        """Remove and return the next item; waits while the queue is empty.

        Raises:
            QueueClosed: if nothing is left and every producer has ended, before or while waiting.
        """
        return self._take(await self._arrivals.get())

    def get_nowait(self) -> T:
        """Remove and return the next item at once, or raise `QueueEmpty` or `QueueClosed`."""
        return self._take(self._arrivals.get_nowait())

    def qsize(self) -> int:
        """Items that have arrived and were not taken yet."""
        return self._arrivals.qsize()

    def statistics(self) -> QueueStatistics:
        """A snapshot of the counts as this end sees them."""
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
        """Tell the producer that an arrival is taken; returns its item."""

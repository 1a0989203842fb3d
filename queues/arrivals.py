"""The consumer's end of a queue from another process: what `shared_receiver`, `served` and `delivered` have in common.

Of the latter two, calls may come in the event loop of another thread than the one that an end belongs to, so that they
are answered while a stage computes there; `post` is the way between the two.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

from headrace.queues.agent_manager_queue import AgentManagerQueue
from headrace.queues.ends import QueueStatistics
from headrace.queues.errors import QueueClosed

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


def post(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: Any) -> bool:
    """Let an event loop, of whichever thread, call something soon; false if the loop has ended."""
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        return False
    return True

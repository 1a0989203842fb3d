"""The bounded queue between two stages of one event loop, named after the behaviour id whose items it carries.

`shared_queue` has the same across processes; `ends` defines the interface that stages see in both cases. Call all
methods from the event loop's thread.

Waiting tasks are served in order of arrival. An item (or free space) for the first task in line is *promised* to that
task and stays in the queue until the task runs. No other task can overtake that task, and a cancelled task passes its
promise on, so no item is lost, duplicated or reordered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from headrace.queues.errors import QueueClosed, QueueEmpty, QueueFull

Overflow = Literal["wait", "replace_oldest"]
"""What `put` does if the queue is full."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """Statistics of a queue, or of one end of it. Wait times include waits that are still in progress."""

    name: str
    items_in: int
    items_out: int
    size: int
    """Number of items put but not yet taken."""
    maxlen: int
    high_water: int
    """The largest size so far."""
    put_wait_s: float
    """Seconds that producers waited for space, summed over producers (backpressure)."""
    get_wait_s: float
    """Seconds that consumers waited for an item, summed over consumers (starvation)."""


class AgentManagerQueue(Generic[T]):
    """A bounded first-in first-out queue with backpressure, an end of stream, and statistics.

    A queue object may serve as both ends. If several producers share the queue, each gets a separate end from
    `add_producer`; the stream ends when the last of those ends closes, or when the queue itself is closed.

    The class has the names of ML-Agents' class: `behavior_id`, `maxlen`, `qsize()`, `empty()`, `get_nowait()` and the
    nested `Empty`. ML-Agents' blocking `put` is a coroutine here. `maxlen=0`, which means unbounded in ML-Agents, is
    refused.

    Args:
        name: the behaviour id, or another name for messages and statistics.
        maxlen: the maximum number of items; must be at least 1. A comment where the queue is created explains the
            number.
        overflow: what `put` does if the queue is full: `wait` for space, or `replace_oldest`, which drops the oldest
            item. Use the latter for items that each contain the full state, such as policies: only the newest item
            matters.
        on_replaced: called with each item that a newer one replaces.

    Raises:
        ValueError: if `maxlen` is less than 1, or `overflow` is unknown.
    """

    Empty = QueueEmpty

    def __init__(
        self, name: str, maxlen: int, overflow: Overflow = "wait", on_replaced: Callable[[T], None] | None = None
    ) -> None:
        if maxlen < 1:
            raise ValueError(f"queue {name!r}: maxlen must be at least 1, got {maxlen}")
        if overflow not in ("wait", "replace_oldest"):
            raise ValueError(f"queue {name!r}: overflow must be 'wait' or 'replace_oldest', got {overflow!r}")
        self.name = name
        self.maxlen = maxlen
        self.overflow: Overflow = overflow
        self._on_replaced = on_replaced
        self._items: deque[T] = deque()
        self._closed = False
        self._getters = WaitingLine()
        self._putters = WaitingLine()
        self._open_producers = 0
        self._in = self._out = self._high_water = 0

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<{type(self).__name__} {self.name!r} {len(self._items)}/{self.maxlen} {state}>"

    @property
    def behavior_id(self) -> str:
        """The queue's name: for a queue of trajectories or policies, the behaviour id whose items it carries."""
        return self.name

    @property
    def closed(self) -> bool:
        """True if the stream has ended, although items may be left in the queue."""
        return self._closed

    def qsize(self) -> int:
        """Return the number of items put but not yet taken."""
        return len(self._items)

    def empty(self) -> bool:
        """Return True if the queue is empty."""
        return not self._items

    def put_nowait(self, item: T) -> None:
        """Put an item without waiting.

        Raises:
            QueueFull: if there is no space, or all space is promised to waiting producers.
            QueueClosed: if the stream has ended.
        """
        if self._closed:
            raise QueueClosed(f"queue {self.name!r} is closed")
        if len(self._items) + self._putters.promised >= self.maxlen:
            if self.overflow == "wait":
                raise QueueFull(f"queue {self.name!r} is full ({self.maxlen} items)")
            # A promise to a waiting getter means "the oldest item when you run", so it stays valid after a replacement.
            oldest = self._items.popleft()
            if self._on_replaced is not None:
                self._on_replaced(oldest)
        self._items.append(item)
        self._in += 1
        self._high_water = max(self._high_water, len(self._items))
        if self._getters.waiters:
            self._getters.promise(len(self._items))

    def get_nowait(self) -> T:
        """Remove and return the oldest item without waiting.

        Raises:
            QueueEmpty: if there is no item, or all items are promised to waiting consumers.
            QueueClosed: if there is no item, and the stream has ended.
        """
        if len(self._items) <= self._getters.promised:
            if self._closed and not self._items:
                raise QueueClosed(f"queue {self.name!r} is closed and drained")
            raise QueueEmpty(f"queue {self.name!r} is empty")
        item = self._items.popleft()
        self._out += 1
        if self._putters.waiters or self._closed:
            self._serve()
        return item

    async def put(self, item: T) -> None:
        """Put an item, waiting for space while the queue is full. A cancelled put delivers nothing.

        Raises:
            QueueClosed: if the stream has ended, or ends during the wait.
        """
        if not self._closed and self.overflow == "wait" and len(self._items) + self._putters.promised >= self.maxlen:
            await self._putters.wait(self._serve)
            if self._closed:
                raise QueueClosed(f"queue {self.name!r} was closed while put() waited")
        self.put_nowait(item)  # after a wait, the space that was promised to this task is free

    async def get(self) -> T:
        """Remove and return the oldest item, waiting while there is none. A cancelled get removes nothing.

        Raises:
            QueueClosed: if the stream has ended and no items are left, or if this happens during the wait.
        """
        try:
            return await anext(self)
        except StopAsyncIteration:
            raise QueueClosed(f"queue {self.name!r} is closed and drained") from None

    def close(self) -> None:
        """End the stream for all producers. Consumers still get the queued items. Closing twice is allowed."""
        self._closed = True
        self._putters.dismiss()
        self._serve()

    def add_producer(self) -> Producer[T]:
        """Add an end for one producer; the stream ends when the last of these ends is closed.

        Add all ends before the first producer runs: a stream that has ended stays ended.

        Raises:
            QueueClosed: if the stream has ended.
        """
        if self._closed:
            raise QueueClosed(f"queue {self.name!r} is closed: it accepts no more producers")
        self._open_producers += 1
        return Producer(self, self._producer_closed)

    def statistics(self) -> QueueStatistics:
        """Return a snapshot of the statistics."""
        return QueueStatistics(
            name=self.name,
            items_in=self._in,
            items_out=self._out,
            size=len(self._items),
            maxlen=self.maxlen,
            high_water=self._high_water,
            put_wait_s=self._putters.waited_s(),
            get_wait_s=self._getters.waited_s(),
        )

    def __aiter__(self) -> AgentManagerQueue[T]:
        return self

    async def __anext__(self) -> T:
        if self._closed and not self._items:
            raise StopAsyncIteration
        if len(self._items) <= self._getters.promised and not await self._getters.wait(self._serve):
            raise StopAsyncIteration
        return self.get_nowait()  # after a wait, the item that was promised to this task is there

    def _serve(self) -> None:
        """Promise items and free space to the first tasks in line, and dismiss tasks that would wait forever."""
        self._getters.promise(len(self._items))
        self._putters.promise(self.maxlen - len(self._items))
        if self._closed and not self._items:
            self._getters.dismiss()

    def _producer_closed(self) -> None:
        self._open_producers -= 1
        if self._open_producers == 0:
            self.close()


class Producer(Generic[T]):
    """One producer's end of a queue with several producers; made by `AgentManagerQueue.add_producer`."""

    def __init__(self, queue: AgentManagerQueue[T], on_close: Callable[[], None]) -> None:
        self._queue = queue
        self._on_close = on_close
        self._closed = False

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._queue.name

    def put_nowait(self, item: T) -> None:
        """Put an item like `AgentManagerQueue.put_nowait`, but also raise `QueueClosed` once this end is closed."""
        if self._closed:
            raise QueueClosed(f"this producer end of queue {self.name!r} is closed")
        self._queue.put_nowait(item)

    async def put(self, item: T) -> None:
        """Put an item like `AgentManagerQueue.put`, but also raise `QueueClosed` once this end is closed."""
        if self._closed:
            raise QueueClosed(f"this producer end of queue {self.name!r} is closed")
        await self._queue.put(item)

    def close(self) -> None:
        """Close this end; the last producer to close its end ends the stream. Closing twice is allowed."""
        if not self._closed:
            self._closed = True
            self._on_close()

    def qsize(self) -> int:
        """Return the number of items in the queue, from all producers."""
        return self._queue.qsize()

    def statistics(self) -> QueueStatistics:
        """Return the statistics of the entire queue."""
        return self._queue.statistics()


class WaitingLine:
    """The tasks that wait for their turn at one end of a queue, in order of arrival."""

    __slots__ = ("_past_s", "promised", "waiters")

    def __init__(self) -> None:
        self.waiters: deque[tuple[asyncio.Future[bool], float]] = deque()
        """For each waiting task: its future, and the loop time at which its wait began."""
        self.promised = 0
        """Number of tasks that have been promised their turn but have not run yet."""
        self._past_s = 0.0

    def waited_s(self) -> float:
        """Return the seconds waited so far, summed over tasks."""
        return self._past_s + sum(future.get_loop().time() - since for future, since in self.waiters)

    async def wait(self, pass_on: Callable[[], None]) -> bool:
        """Wait for a promise; return True if one was made, False if the task was dismissed.

        Args:
            pass_on: called if the wait is cancelled after the promise, to promise the turn to another task.
        """
        loop = asyncio.get_running_loop()
        entry = (loop.create_future(), loop.time())
        self.waiters.append(entry)
        future, since = entry
        try:
            if not await future:
                return False
        except asyncio.CancelledError:
            if future.cancelled():
                # The task ahead in line may have skipped this task already.
                if entry in self.waiters:
                    self.waiters.remove(entry)
            elif future.result():
                self.promised -= 1
                pass_on()
            raise
        finally:
            self._past_s += loop.time() - since
        self.promised -= 1
        return True

    def promise(self, turns: int) -> None:
        """Promise the first tasks in line their turns, until `turns` promises are open."""
        while self.waiters and self.promised < turns:
            future, _ = self.waiters.popleft()
            if not future.done():
                future.set_result(True)
                self.promised += 1

    def dismiss(self) -> None:
        """End all waits without a promise."""
        while self.waiters:
            future, _ = self.waiters.popleft()
            if not future.done():
                future.set_result(False)

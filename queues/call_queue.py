"""A queue between processes, only one of which can call the other. The transport of the calls is independent of it.

If only the consumer can call, the consumer fetches the items: `PullSender` keeps items until the consumer has taken
them, and answers calls. `PullReceiver` calls one or several producers, each a `FetchSource`.

A call may cost a millisecond, so there is only one kind: it reports how many earlier items were taken, waits for items,
and returns all of them. The consumer calls again as soon as the last call returns, so items arrive while the consumer
computes. The next call waits until its report gives the producer space for new items, because before that the call
would return no items.

If only the producer can call, the producer delivers the items: `PushSender` makes one call for each item. The call
returns when the item is taken or, for a queue that keeps only the newest item, when the item arrives. `PushReceiver`
receives the items. The transport need not preserve the calls' order.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from headrace.queues.agent_manager_queue import AgentManagerQueue, Overflow, Producer
from headrace.queues.ends import BoundedSender, BufferedReceiver, call_in_loop
from headrace.queues.errors import PeerLost, QueueClosed

T = TypeVar("T")

CALL_TURNS = 8
"""Number of event loop iterations in which a new call can be sent before the consumer gets the last call's items.
This lets the next items arrive while the consumer computes, which may take long. A call is sent within a few
iterations, each of which costs microseconds."""


class FetchSource(Protocol):
    """The calls that a consumer makes to a producer."""

    async def fetch(self, name: str, taken: int) -> list[Any] | None:
        """Return the items put but not yet fetched, waiting while there are none; None at the end of the stream.

        Args:
            name: the queue's name.
            taken: number of items taken since the previous call, which makes space for others.

        Raises:
            PeerLost: if the producer has died.
        """

    def finish(self, name: str) -> None:
        """Stop the producer without waiting; the consumer makes no more calls."""


# Ray processes inherit no sockets, so items wait with their producer until the consumer fetches them
# (docs/decisions/014).
class PullSender(BoundedSender[T]):
    """The producer's end. A put waits while `maxlen` items, including those in transit, are put but not yet taken.

    With `overflow="replace_oldest"`, a newer item replaces one that is not yet fetched.

    The consumer's calls may arrive in another thread's event loop; answering them does not require the producer to be
    idle.
    """

    def __init__(self, name: str, maxlen: int, overflow: Overflow = "wait") -> None:
        super().__init__(name, maxlen, overflow)
        self._home = asyncio.get_running_loop()
        self._unfetched: deque[T] = deque()
        self._lock = threading.Lock()
        """Guards the items that are not yet fetched."""
        self._calls: asyncio.AbstractEventLoop | None = None
        """The event loop in which calls arrive."""
        self._changed = asyncio.Event()
        """Set in the event loop `_calls` when there may be an answer."""
        self._finished = asyncio.Event()
        self._consumers = 1

    def close(self) -> None:
        """End the stream: items already put are delivered; waiting puts raise `QueueClosed`."""
        self._room.close()
        self._tell_calls()

    def reconnect(self) -> None:
        """Restart with a consumer that replaces a dead one; items that the dead consumer fetched are lost."""
        self._consumers += 1
        self._forget_fetched()
        self._tell_calls()

    async def wait_closed(self) -> None:
        """Wait, after `close`, until the consumer has received every item or is gone."""
        await self._finished.wait()

    # Calls from the consumer.

    async def fetch(self, taken: int) -> list[T] | None:
        """Return items as `FetchSource.fetch` does.

        `reconnect` ends a wait without returning items, after which a live consumer calls again.
        """
        self._calls = asyncio.get_running_loop()
        consumer = self._consumers
        if taken:
            call_in_loop(self._home, self._make_room, taken)
        while True:
            self._changed.clear()  # before the check, so that a later item sets it again
            ended = self._room.closed
            with self._lock:
                items, self._unfetched = list(self._unfetched), deque()
            if items:
                if self._room.overflow == "replace_oldest":
                    call_in_loop(self._home, self._forget_fetched)
                return items
            if ended:
                return None
            await self._changed.wait()
            if consumer != self._consumers:
                return []

    def finish(self) -> None:
        """Stop the producer (see `FetchSource.finish`).

        Items not yet fetched are dropped, and further puts raise `QueueClosed`.
        """
        call_in_loop(self._home, self._finish)

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
            call_in_loop(self._calls, self._changed.set)


class _ConsumedCounter:
    """Counts one producer's items: those not taken as far as the producer knows, and those taken but not yet reported.

    Args:
        maxlen: the producer's limit.
    """

    def __init__(self, maxlen: int) -> None:
        self._maxlen = maxlen
        self.untaken = 0
        """Number of fetched items that the producer does not know to be taken."""
        self._unreported = 0
        self.has_taken = asyncio.Event()
        """Set once an item is taken that is not yet reported."""

    def take(self) -> None:
        """Count one taken item."""
        self._unreported += 1
        self.has_taken.set()

    @property
    def has_room(self) -> bool:
        """True if the next report would give the producer space for an item."""
        return self.untaken - self._unreported < self._maxlen

    def report(self) -> int:
        """Return how many items were taken since the previous report."""
        self.has_taken.clear()
        count, self._unreported = self._unreported, 0
        self.untaken -= count
        return count


MOST_SUCCESSORS = 64
"""Maximum number of successors of one producer that wait for the deaths of their predecessors: far more than main
starts before a death shows."""


class PullReceiver(BufferedReceiver[tuple[T, _ConsumedCounter], T]):
    """The consumer's end, which returns items in the order of arrival.

    The stream ends when the last producer has ended its own stream.

    Args:
        name: the queue's name.
        maxlen: the limit of each producer.
        sources: the producers, keyed by the keys that `replace` takes.
        overflow: as in `AgentManagerQueue`.
    """

    def __init__(self, name: str, maxlen: int, sources: Mapping[str, FetchSource], overflow: Overflow = "wait") -> None:
        bound = maxlen if overflow == "replace_oldest" else maxlen * len(sources)
        super().__init__(name, AgentManagerQueue(name, bound, overflow))
        self._maxlen = maxlen
        self._sources = dict(sources)
        self._successors: dict[str, asyncio.Queue[FetchSource | None]] = {
            key: asyncio.Queue(MOST_SUCCESSORS) for key in sources
        }
        ends = {key: self._arrivals.add_producer() for key in sources}  # all before the first one can close
        self._tasks = {
            key: asyncio.create_task(self._pull(key, end), name=f"fetching {name}") for key, end in ends.items()
        }

    def replace(self, key: str, source: FetchSource | None) -> None:
        """Set the successor of a producer that died before the end of its stream, or None if there will be none."""
        self._successors[key].put_nowait(source)

    def close(self) -> None:
        """Refuse more items: producers' puts raise `QueueClosed`. Items that have arrived remain available."""
        self._arrivals.close()
        for key, task in self._tasks.items():
            if not task.done():
                task.cancel()
                self._sources[key].finish(self.name)

    def _take(self, arrival: tuple[T, _ConsumedCounter]) -> T:
        item, consumed = arrival
        consumed.take()
        return item

    async def _pull(self, key: str, end: Producer[tuple[T, _ConsumedCounter]]) -> None:
        try:
            with suppress(QueueClosed):
                while not await self._pull_all(self._sources[key], end):
                    successor = await self._successors[key].get()
                    if successor is None:
                        break
                    self._sources[key] = successor
        finally:
            end.close()

    async def _pull_all(self, source: FetchSource, end: Producer[tuple[T, _ConsumedCounter]]) -> bool:
        """Fetch until the stream ends; return False if the producer died before that."""
        consumed = _ConsumedCounter(self._maxlen)
        call = asyncio.ensure_future(source.fetch(self.name, 0))
        try:
            while (items := await call) is not None:
                if self._arrivals.overflow == "wait":
                    consumed.untaken += len(items)
                if early := consumed.has_room:
                    call = asyncio.ensure_future(source.fetch(self.name, consumed.report()))
                    for _ in range(CALL_TURNS):
                        await asyncio.sleep(0)
                for item in items:
                    await end.put((item, consumed))
                items.clear()
                if not early:
                    await consumed.has_taken.wait()
                    call = asyncio.ensure_future(source.fetch(self.name, consumed.report()))
        except PeerLost:
            return False
        finally:
            call.cancel()
        source.finish(self.name)
        return True


Deliver = Callable[[str, int, Any], Awaitable[bool]]
"""Function that delivers a numbered item (None for the end of the stream) to a queue; returns False if the queue is
closed.

Raises `PeerLost` if the consumer has died.
"""


class PushSender(BoundedSender[T]):
    """The producer's end. A put waits while `maxlen` items, including those in transit, are put but not yet taken.

    With `overflow="replace_oldest"`, one item is in flight at a time, and a newer item replaces the one waiting behind
    it.

    With `replaceable`, the consumer's death ends the stream only if `rule_out_successor` was called. Otherwise the
    items in flight are lost, and `reconnect` sets the successor.
    """

    def __init__(
        self, name: str, maxlen: int, deliver: Deliver, overflow: Overflow = "wait", replaceable: bool = False
    ) -> None:
        super().__init__(name, maxlen, overflow)
        self._deliver = deliver
        self._numbers = 0
        self._replaceable = replaceable
        self._calls: set[asyncio.Task[None]] = set()
        self._delivering = False
        """With `replace_oldest`: True while a call is in progress, which checks for a newer item before it returns."""

    def close(self) -> None:
        """End the stream: items already put are delivered; waiting puts raise `QueueClosed`."""
        if self._room.closed:
            return
        self._room.close()
        if not self._newest_only:
            self._call(self._hand_over(None))
        elif not self._delivering:
            self._call(self._deliver_newest())

    def reconnect(self, deliver: Deliver) -> None:
        """Deliver to a consumer that replaces a dead one."""
        self._deliver, self._numbers = deliver, 0

    def rule_out_successor(self) -> None:
        """Declare that the consumer has no successor, so its death ends the stream."""
        self._replaceable = False

    @property
    def _newest_only(self) -> bool:
        return self._room.overflow == "replace_oldest"

    def _send(self, item: T) -> None:
        if not self._newest_only:
            self._call(self._hand_over(item))
        elif not self._delivering:
            self._delivering = True  # not `_calls`, which still contains a call that has just ended
            self._call(self._deliver_newest())

    def _call(self, call: Any) -> None:
        task = asyncio.get_running_loop().create_task(call, name=f"delivering {self.name}")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _hand_over(self, item: T | None) -> None:
        number, self._numbers = self._numbers, self._numbers + 1
        if not await self._delivered(number, item):
            self._give_up()
        elif item is not None and self._room.qsize():
            self._room.get_nowait()

    async def _deliver_newest(self) -> None:
        while self._room.qsize():
            number, self._numbers = self._numbers, self._numbers + 1
            if not await self._delivered(number, self._room.get_nowait()):
                self._give_up()
                return
        self._delivering = False
        if self._room.closed:
            await self._delivered(self._numbers, None)

    async def _delivered(self, number: int, item: T | None) -> bool:
        try:
            return await self._deliver(self.name, number, item)
        except PeerLost:
            return self._replaceable

    def _give_up(self) -> None:
        """Close permanently, because the consumer takes no more items."""
        self._room.close()
        while self._room.qsize():
            self._room.get_nowait()


class PushReceiver(BufferedReceiver[tuple[T, "asyncio.Future[bool]"], T]):
    """The consumer's end. Calls may arrive in the event loop of another thread."""

    def __init__(self, name: str, maxlen: int, overflow: Overflow = "wait") -> None:
        super().__init__(name, AgentManagerQueue(name, maxlen, overflow))
        self._home = asyncio.get_running_loop()
        self._early: dict[int, tuple[T | None, asyncio.Future[bool]]] = {}
        """Items that arrived before their predecessors, keyed by number."""
        self._unanswered: set[asyncio.Future[bool]] = set()
        """Futures that are not yet resolved. They belong to the event loop in which calls arrive."""
        self._expected = 0
        self._ended = False

    def close(self) -> None:
        """Refuse more items: the producer's puts raise `QueueClosed`. Items that have arrived remain available."""
        self._ended = True
        self._arrivals.close()
        self._early.clear()
        for answer in list(self._unanswered):
            self._answer(answer, False)

    async def deliver(self, number: int, item: T | None) -> bool:
        """Receive a call from the producer; see `Deliver`."""
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        return call_in_loop(self._home, self._receive, number, item, answer) and await answer

    def _receive(self, number: int, item: T | None, answer: asyncio.Future[bool]) -> None:
        self._unanswered.add(answer)
        if self._ended:
            self._answer(answer, False)
            return
        self._early[number] = item, answer
        while not self._ended and self._expected in self._early:
            self._accept(*self._early.pop(self._expected))
            self._expected += 1

    def _accept(self, item: T | None, answer: asyncio.Future[bool]) -> None:
        if item is None:
            self._ended = True
            self._arrivals.close()
            self._answer(answer, True)
            return
        self._arrivals.put_nowait((item, answer))
        if self._arrivals.overflow == "replace_oldest":
            self._answer(answer, True)

    def _take(self, arrival: tuple[T, asyncio.Future[bool]]) -> T:
        item, answer = arrival
        self._answer(answer, True)
        return item

    def _answer(self, answer: asyncio.Future[bool], accepted: bool) -> None:
        if answer in self._unanswered:
            self._unanswered.discard(answer)
            call_in_loop(answer.get_loop(), _set, answer, accepted)


def _set(answer: asyncio.Future[bool], accepted: bool) -> None:
    if not answer.done():  # otherwise the call was cancelled
        answer.set_result(accepted)

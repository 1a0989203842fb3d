"""A queue whose consumer can be called by its producer, but not the other way round: the producer delivers the items.

The producer's end, `PushSender`, makes one call for each item. The call returns when the item is taken or, for a queue
that keeps only the newest item, when the item arrives. The consumer's end, `PushReceiver`, receives the items. The
transport of the calls is independent of both ends, and need not preserve their order. `pull` works in the other
direction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from headrace.queues.agent_manager_queue import AgentManagerQueue, Overflow
from headrace.queues.ends import BoundedSender, BufferedReceiver, call_in_loop
from headrace.queues.errors import PeerLost

T = TypeVar("T")

Deliver = Callable[[str, int, Any], Awaitable[bool]]
"""Function that delivers a numbered item (None for the end of the stream) to a queue; returns False if the queue is
closed.

Raises `PeerLost` if the consumer has died.
"""


class PushSender(BoundedSender[T]):
    """The producer's end. A put waits while `maxlen` items, including those in transit, are put but not yet taken.

    With `overflow="replace_oldest"`, one item is in flight at a time, and a newer item replaces the one waiting behind
    it.

    With `renewable`, the consumer's death ends the stream only if `settle` has ruled out a successor. Otherwise the
    items in flight are lost, and `renew` sets the successor.
    """

    def __init__(
        self, name: str, maxlen: int, deliver: Deliver, overflow: Overflow = "wait", renewable: bool = False
    ) -> None:
        super().__init__(name, maxlen, overflow)
        self._deliver = deliver
        self._numbers = 0
        self._renewable = renewable
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

    def renew(self, deliver: Deliver) -> None:
        """Deliver to a consumer that replaces a dead one."""
        self._deliver, self._numbers = deliver, 0

    def settle(self) -> None:
        """Declare that the consumer has no successor, so its death ends the stream."""
        self._renewable = False

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
            return self._renewable

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

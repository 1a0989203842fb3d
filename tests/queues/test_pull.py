"""A queue whose consumer fetches: both ends in one event loop, joined by calls that take a moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from queue_conformance import Ends, check_queue, number_of, numbered
from virtual_time import until_blocked

from headrace.queues.call_queue import PullReceiver, PullSender
from headrace.queues.errors import PeerLost, QueueClosed
from headrace.queues.messages import Barrier, Message

pytestmark = pytest.mark.virtual_time


class Calls:
    """Calls of one producer, until it dies."""

    def __init__(self, sender: PullSender[Message]) -> None:
        self.sender = sender
        self.death = asyncio.Event()

    async def fetch(self, name: str, taken: int) -> list[Any] | None:
        fetching = asyncio.ensure_future(self.sender.fetch(taken))
        dying = asyncio.ensure_future(self.death.wait())
        done, left = await asyncio.wait([fetching, dying], return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        if dying in done:
            raise PeerLost("it has died")
        return fetching.result()

    def finish(self, name: str) -> None:
        asyncio.get_running_loop().call_soon(self.sender.finish)


@asynccontextmanager
async def served(maxlen: int) -> AsyncIterator[Ends]:
    sender: PullSender[Message] = PullSender("Ball", maxlen)
    receiver: PullReceiver[Message] = PullReceiver("Ball", maxlen, {"actor-0": Calls(sender)})
    yield sender, receiver
    receiver.close()
    await until_blocked()


def producer(maxlen: int = 2) -> Calls:
    return Calls(PullSender("Ball", maxlen))


async def test_a_queue_whose_consumer_fetches_does_what_every_queue_does():
    await check_queue(served)


async def test_fetched_items_count_for_the_bound_until_they_are_taken():
    async with served(2) as (sender, receiver):
        await sender.put(Barrier(0))
        await sender.put(Barrier(1))
        await until_blocked()
        putter = asyncio.create_task(sender.put(Barrier(2)))
        await until_blocked()
        assert (receiver.qsize(), sender.qsize(), putter.done()) == (2, 2, False)
        await receiver.get()
        await putter


async def test_a_successor_continues_where_a_dead_producer_has_ended():
    first, second = producer(), producer()
    receiver: PullReceiver[Message] = PullReceiver("Ball", 2, {"actor-0": first})
    await first.sender.put(numbered(0))
    await until_blocked()
    first.death.set()
    await second.sender.put(numbered(1))
    await until_blocked()
    receiver.replace("actor-0", second)
    second.sender.close()
    assert [number_of(item) async for item in receiver] == [0, 1]
    await second.sender.wait_closed()


async def test_a_successor_that_is_named_before_the_death_shows_waits_for_it():
    first, second = producer(), producer()
    receiver: PullReceiver[Message] = PullReceiver("Ball", 2, {"actor-0": first})
    receiver.replace("actor-0", second)
    await second.sender.put(numbered(1))
    await until_blocked()
    assert not receiver.qsize()
    first.death.set()
    assert number_of(await receiver.get()) == 1
    receiver.close()


async def test_the_stream_ends_with_the_last_producer_that_is_not_replaced():
    first, second = producer(), producer()
    receiver: PullReceiver[Message] = PullReceiver("Ball", 2, {"actor-0": first, "actor-1": second})
    first.death.set()
    receiver.replace("actor-0", None)
    await second.sender.put(numbered(5))
    second.sender.close()
    assert [number_of(item) async for item in receiver] == [5]


async def test_a_put_ends_when_the_consumer_is_gone():
    sender: PullSender[Message] = PullSender("Ball", 1)
    await sender.put(Barrier(0))
    putter = asyncio.create_task(sender.put(Barrier(1)))
    await until_blocked()
    sender.finish()
    with pytest.raises(QueueClosed):
        await putter
    sender.close()
    await sender.wait_closed()


async def test_a_new_consumer_gets_what_the_dead_one_had_not_fetched_and_all_the_room():
    sender: PullSender[Message] = PullSender("trajectories", 2)
    await sender.put(Barrier(0))
    assert await sender.fetch(0) == [Barrier(0)]  # and never taken
    await sender.put(Barrier(1))
    sender.reconnect()
    assert sender.qsize() == 1
    sender.put_nowait(Barrier(2))
    assert await sender.fetch(0) == [Barrier(1), Barrier(2)]


async def test_a_waiting_consumer_gets_later_items_after_its_producer_restarts_for_another_consumer():
    async with served(2) as (sender, receiver):
        await sender.put(numbered(0))
        assert number_of(await receiver.get()) == 0
        await until_blocked()  # it has said so, and waits for more
        assert isinstance(sender, PullSender)
        sender.reconnect()
        await until_blocked()
        for number in range(1, 9):
            await sender.put(numbered(number))
            assert number_of(await receiver.get()) == number


async def test_a_call_of_a_consumer_that_was_replaced_meanwhile_gets_nothing():
    sender: PullSender[Message] = PullSender("trajectories", 2)
    old = asyncio.create_task(sender.fetch(0))
    await until_blocked()
    sender.reconnect()
    new = asyncio.create_task(sender.fetch(0))
    sender.put_nowait(Barrier(1))
    assert await old == []
    assert await new == [Barrier(1)]


async def test_the_newest_replaces_what_was_not_fetched():
    sender: PullSender[Message] = PullSender("updates", 1, "replace_oldest")
    for number in range(3):
        await sender.put(Barrier(number))
    receiver: PullReceiver[Message] = PullReceiver("updates", 1, {"learner": Calls(sender)}, "replace_oldest")
    assert await receiver.get() == Barrier(2)
    await sender.put(Barrier(3))
    await until_blocked()
    await sender.put(Barrier(4))
    await until_blocked()
    assert await receiver.get() == Barrier(4)
    receiver.close()
    await until_blocked()

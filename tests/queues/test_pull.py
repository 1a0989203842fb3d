"""A queue whose consumer fetches: both ends in one event loop, joined by calls that take a moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from queue_conformance import Ends, check_queue, number_of, numbered
from virtual_time import until_blocked

from headrace.queues.errors import PeerLost, QueueClosed
from headrace.queues.messages import Barrier, Message
from headrace.queues.pull import PullInlet, PullOutlet

pytestmark = pytest.mark.virtual_time


class Calls:
    """Calls of one producer, until it dies."""

    def __init__(self, outlet: PullOutlet[Message]) -> None:
        self.outlet = outlet
        self.made = 0
        self.death = asyncio.Event()

    async def fetch(self, name: str, taken: int) -> list[Any] | None:
        self.made += 1
        fetching = asyncio.ensure_future(self.outlet.fetch(taken))
        dying = asyncio.ensure_future(self.death.wait())
        done, left = await asyncio.wait([fetching, dying], return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        if dying in done:
            raise PeerLost("it has died")
        return fetching.result()

    def finish(self, name: str) -> None:
        asyncio.get_running_loop().call_soon(self.outlet.finish)


@asynccontextmanager
async def served(maxlen: int) -> AsyncIterator[Ends]:
    outlet: PullOutlet[Message] = PullOutlet("Ball", maxlen)
    inlet: PullInlet[Message] = PullInlet("Ball", maxlen, {"actor-0": Calls(outlet)})
    yield outlet, inlet
    inlet.close()
    await until_blocked()


def producer(maxlen: int = 2) -> Calls:
    return Calls(PullOutlet("Ball", maxlen))


async def test_it_does_what_every_queue_does():
    await check_queue(served)


async def test_what_was_fetched_and_not_taken_counts_for_the_bound():
    async with served(2) as (outlet, inlet):
        await outlet.put(Barrier(0))
        await outlet.put(Barrier(1))
        await until_blocked()
        putter = asyncio.create_task(outlet.put(Barrier(2)))
        await until_blocked()
        assert (inlet.qsize(), outlet.qsize(), putter.done()) == (2, 2, False)
        await inlet.get()
        await putter


async def test_the_next_call_has_left_when_the_consumer_gets_what_the_last_one_brought():
    calls = producer(maxlen=2)
    inlet: PullInlet[Message] = PullInlet("Ball", 2, {"actor-0": calls})
    for number in range(3):
        await calls.outlet.put(Barrier(number))
        assert await inlet.get() == Barrier(number)
        assert calls.made == number + 2
    inlet.close()


async def test_no_call_is_made_as_long_as_the_producer_has_no_room():
    calls = producer(maxlen=1)
    inlet: PullInlet[Message] = PullInlet("Ball", 1, {"actor-0": calls})
    for number in range(3):
        await calls.outlet.put(Barrier(number))
        await until_blocked()
        assert calls.made == number + 1
        assert await inlet.get() == Barrier(number)
    inlet.close()


async def test_a_successor_continues_where_a_dead_producer_has_ended():
    first, second = producer(), producer()
    inlet: PullInlet[Message] = PullInlet("Ball", 2, {"actor-0": first})
    await first.outlet.put(numbered(0))
    await until_blocked()
    first.death.set()
    await second.outlet.put(numbered(1))
    await until_blocked()
    inlet.replace("actor-0", second)
    second.outlet.close()
    assert [number_of(item) async for item in inlet] == [0, 1]
    await second.outlet.wait_closed()


async def test_a_successor_that_is_named_before_the_death_shows_waits_for_it():
    first, second = producer(), producer()
    inlet: PullInlet[Message] = PullInlet("Ball", 2, {"actor-0": first})
    inlet.replace("actor-0", second)
    await second.outlet.put(numbered(1))
    await until_blocked()
    assert not inlet.qsize()
    first.death.set()
    assert number_of(await inlet.get()) == 1
    inlet.close()


async def test_the_stream_ends_with_the_last_producer_that_is_not_replaced():
    first, second = producer(), producer()
    inlet: PullInlet[Message] = PullInlet("Ball", 2, {"actor-0": first, "actor-1": second})
    first.death.set()
    inlet.settle("actor-0")
    await second.outlet.put(numbered(5))
    second.outlet.close()
    assert [number_of(item) async for item in inlet] == [5]


async def test_nobody_waits_for_a_consumer_that_is_gone():
    outlet: PullOutlet[Message] = PullOutlet("Ball", 1)
    await outlet.put(Barrier(0))
    putter = asyncio.create_task(outlet.put(Barrier(1)))
    await until_blocked()
    outlet.finish()
    with pytest.raises(QueueClosed):
        await putter
    outlet.close()
    await outlet.wait_closed()


async def test_a_new_consumer_gets_what_the_dead_one_had_not_fetched_and_all_the_room():
    outlet: PullOutlet[Message] = PullOutlet("trajectories", 2)
    await outlet.put(Barrier(0))
    assert await outlet.fetch(0) == [Barrier(0)]  # and never taken
    await outlet.put(Barrier(1))
    outlet.renew()
    assert outlet.qsize() == 1
    outlet.put_nowait(Barrier(2))
    assert await outlet.fetch(0) == [Barrier(1), Barrier(2)]


async def test_a_call_of_a_consumer_that_was_replaced_meanwhile_gets_nothing():
    outlet: PullOutlet[Message] = PullOutlet("trajectories", 2)
    old = asyncio.create_task(outlet.fetch(0))
    await until_blocked()
    outlet.renew()
    new = asyncio.create_task(outlet.fetch(0))
    outlet.put_nowait(Barrier(1))
    assert await old == []
    assert await new == [Barrier(1)]


async def test_a_consumer_that_waits_as_its_producer_begins_anew_for_another_one_behind_it_gets_what_comes_later():
    async with served(2) as (outlet, inlet):
        await outlet.put(numbered(0))
        assert number_of(await inlet.get()) == 0
        await until_blocked()  # it has said so, and waits for more
        assert isinstance(outlet, PullOutlet)
        outlet.renew()
        await until_blocked()
        for number in range(1, 9):
            await outlet.put(numbered(number))
            assert number_of(await inlet.get()) == number


async def test_the_newest_replaces_what_was_not_fetched():
    outlet: PullOutlet[Message] = PullOutlet("updates", 1, "replace_oldest")
    for number in range(3):
        await outlet.put(Barrier(number))
    inlet: PullInlet[Message] = PullInlet("updates", 1, {"learner": Calls(outlet)}, "replace_oldest")
    assert await inlet.get() == Barrier(2)
    await outlet.put(Barrier(3))
    await until_blocked()
    await outlet.put(Barrier(4))
    await until_blocked()
    assert await inlet.get() == Barrier(4)
    assert outlet.statistics().replaced == 2
    inlet.close()
    await until_blocked()

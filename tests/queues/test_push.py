"""A queue whose producer delivers: both ends in one event loop, joined by calls that may overtake each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from queue_conformance import Ends, check_queue, number_of
from virtual_time import until_blocked

from headrace.queues.errors import PeerLost, QueueClosed
from headrace.queues.messages import Barrier, Message
from headrace.queues.push import PushInlet, PushOutlet

pytestmark = pytest.mark.virtual_time


@asynccontextmanager
async def delivered(maxlen: int) -> AsyncIterator[Ends]:
    inlet: PushInlet[Message] = PushInlet("Ball", maxlen)

    async def deliver(name: str, number: int, item: Any) -> bool:
        return await inlet.deliver(number, item)

    outlet: PushOutlet[Message] = PushOutlet("Ball", maxlen, deliver)
    yield outlet, inlet
    inlet.close()
    outlet.close()
    await until_blocked()


async def test_it_does_what_every_queue_does():
    await check_queue(delivered)


async def test_items_that_overtake_each_other_are_put_in_order():
    inlet: PushInlet[Message] = PushInlet("Ball", 4)

    async def deliver(name: str, number: int, item: Any) -> bool:
        await asyncio.sleep(10 - number)
        return await inlet.deliver(number, item)

    outlet: PushOutlet[Message] = PushOutlet("Ball", 4, deliver)
    for number in range(4):
        await outlet.put(Barrier(number))
    outlet.close()
    assert [number_of(item) async for item in inlet] == [0, 1, 2, 3]


async def test_a_producer_learns_that_its_consumer_has_died():
    async def deliver(name: str, number: int, item: Any) -> bool:
        await asyncio.sleep(1)
        raise PeerLost("it has died")

    outlet: PushOutlet[Message] = PushOutlet("Ball", 1, deliver)
    await outlet.put(Barrier(0))
    with pytest.raises(QueueClosed):
        await outlet.put(Barrier(1))
    outlet.close()


async def test_a_new_consumer_takes_the_place_of_a_dead_one_and_what_was_on_its_way_is_lost():
    async def dead(name: str, number: int, item: Any) -> bool:
        await asyncio.sleep(0)
        raise PeerLost("killed")

    outlet: PushOutlet[Message] = PushOutlet("learn", 1, dead, renewable=True)
    for number in range(3):
        await outlet.put(Barrier(number))
    await until_blocked()
    inlet: PushInlet[Message] = PushInlet("learn", 1)

    async def deliver(name: str, number: int, item: Any) -> bool:
        return await inlet.deliver(number, item)

    outlet.renew(deliver)
    await outlet.put(Barrier(3))
    assert await inlet.get() == Barrier(3)
    outlet.renew(dead)
    outlet.settle()
    await outlet.put(Barrier(4))
    await until_blocked()
    with pytest.raises(QueueClosed):
        await outlet.put(Barrier(5))


async def test_the_newest_replaces_what_is_not_under_way_yet():
    inlet: PushInlet[Message] = PushInlet("policies", 1, "replace_oldest")
    calls = []

    async def deliver(name: str, number: int, item: Any) -> bool:
        calls.append(item)
        await asyncio.sleep(1)
        return await inlet.deliver(number, item)

    outlet: PushOutlet[Message] = PushOutlet("policies", 1, deliver, "replace_oldest")
    outlet.put_nowait(Barrier(0))
    await asyncio.sleep(0.5)
    outlet.put_nowait(Barrier(1))
    outlet.put_nowait(Barrier(2))
    outlet.close()
    await asyncio.sleep(5)
    assert calls == [Barrier(0), Barrier(2), None]
    assert [number_of(item) async for item in inlet] == [2]


async def test_what_is_put_just_when_a_call_ends_is_delivered_too():
    loop, answered, calls = asyncio.get_running_loop(), asyncio.Event(), []

    async def deliver(name: str, number: int, item: Any) -> bool:
        calls.append(item)
        await answered.wait()
        return True

    outlet: PushOutlet[Message] = PushOutlet("policies", 1, deliver, "replace_oldest")
    outlet.put_nowait(Barrier(0))
    await until_blocked()
    answered.set()  # the call ends in the loop's next round, and after it in the same round the next item is put
    loop.call_soon(outlet.put_nowait, Barrier(1))
    await until_blocked()
    assert calls == [Barrier(0), Barrier(1)]
    outlet.close()
    await until_blocked()

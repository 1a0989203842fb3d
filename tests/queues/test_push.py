"""A queue whose producer delivers: both ends in one event loop, joined by calls that may overtake each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from queue_conformance import Ends, check_queue, number_of
from virtual_time import until_blocked

from headrace.queues.call_queue import PushReceiver, PushSender
from headrace.queues.errors import PeerLost, QueueClosed
from headrace.queues.messages import Barrier, Message

pytestmark = pytest.mark.virtual_time


@asynccontextmanager
async def delivered(maxlen: int) -> AsyncIterator[Ends]:
    receiver: PushReceiver[Message] = PushReceiver("Ball", maxlen)

    async def deliver(name: str, number: int, item: Any) -> bool:
        return await receiver.deliver(number, item)

    sender: PushSender[Message] = PushSender("Ball", maxlen, deliver)
    yield sender, receiver
    receiver.close()
    sender.close()
    await until_blocked()


async def test_a_queue_whose_producer_calls_does_what_every_queue_does():
    await check_queue(delivered)


async def test_items_that_overtake_each_other_are_put_in_order():
    receiver: PushReceiver[Message] = PushReceiver("Ball", 4)

    async def deliver(name: str, number: int, item: Any) -> bool:
        await asyncio.sleep(10 - number)
        return await receiver.deliver(number, item)

    sender: PushSender[Message] = PushSender("Ball", 4, deliver)
    for number in range(4):
        await sender.put(Barrier(number))
    sender.close()
    assert [number_of(item) async for item in receiver] == [0, 1, 2, 3]


async def test_a_producer_learns_that_its_consumer_has_died():
    async def deliver(name: str, number: int, item: Any) -> bool:
        await asyncio.sleep(1)
        raise PeerLost("it has died")

    sender: PushSender[Message] = PushSender("Ball", 1, deliver)
    await sender.put(Barrier(0))
    with pytest.raises(QueueClosed):
        await sender.put(Barrier(1))
    sender.close()


async def test_a_new_consumer_replaces_a_dead_one_and_items_in_flight_are_lost():
    async def dead(name: str, number: int, item: Any) -> bool:
        await asyncio.sleep(0)
        raise PeerLost("killed")

    sender: PushSender[Message] = PushSender("learn", 1, dead, replaceable=True)
    for number in range(3):
        await sender.put(Barrier(number))
    await until_blocked()
    receiver: PushReceiver[Message] = PushReceiver("learn", 1)

    async def deliver(name: str, number: int, item: Any) -> bool:
        return await receiver.deliver(number, item)

    sender.reconnect(deliver)
    await sender.put(Barrier(3))
    assert await receiver.get() == Barrier(3)
    sender.reconnect(dead)
    sender.rule_out_successor()
    await sender.put(Barrier(4))
    await until_blocked()
    with pytest.raises(QueueClosed):
        await sender.put(Barrier(5))


async def test_the_newest_item_replaces_one_that_is_not_in_flight_yet():
    receiver: PushReceiver[Message] = PushReceiver("policies", 1, "replace_oldest")
    calls = []

    async def deliver(name: str, number: int, item: Any) -> bool:
        calls.append(item)
        await asyncio.sleep(1)
        return await receiver.deliver(number, item)

    sender: PushSender[Message] = PushSender("policies", 1, deliver, "replace_oldest")
    sender.put_nowait(Barrier(0))
    await asyncio.sleep(0.5)
    sender.put_nowait(Barrier(1))
    sender.put_nowait(Barrier(2))
    sender.close()
    await asyncio.sleep(5)
    assert calls == [Barrier(0), Barrier(2), None]
    assert [number_of(item) async for item in receiver] == [2]


async def test_an_item_put_while_a_call_ends_is_delivered():
    loop, answered, calls = asyncio.get_running_loop(), asyncio.Event(), []

    async def deliver(name: str, number: int, item: Any) -> bool:
        calls.append(item)
        await answered.wait()
        return True

    sender: PushSender[Message] = PushSender("policies", 1, deliver, "replace_oldest")
    sender.put_nowait(Barrier(0))
    await until_blocked()
    answered.set()  # the call ends in the loop's next round, and after it in the same round the next item is put
    loop.call_soon(sender.put_nowait, Barrier(1))
    await until_blocked()
    assert calls == [Barrier(0), Barrier(1)]
    sender.close()
    await until_blocked()

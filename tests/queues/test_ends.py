"""Queues over calls, where the calls come in another thread's event loop than the one in which a host computes."""

from __future__ import annotations

import asyncio
import threading

import pytest
from queue_conformance import number_of

from headrace.queues.call_queue import PullSender, PushReceiver
from headrace.queues.errors import QueueClosed
from headrace.queues.messages import Barrier, Message


async def test_calls_are_answered_while_the_producer_computes():
    calls, computed = asyncio.get_running_loop(), threading.Event()
    made: asyncio.Future[PullSender[Message]] = calls.create_future()

    async def produce() -> None:
        sender: PullSender[Message] = PullSender("updates", 1)
        calls.call_soon_threadsafe(made.set_result, sender)
        for number in range(2):
            await sender.put(Barrier(number))
        computed.wait()
        with pytest.raises(QueueClosed):
            await sender.put(Barrier(2))

    producing = asyncio.create_task(asyncio.to_thread(asyncio.run, produce()))
    sender = await made
    assert [await sender.fetch(0), await sender.fetch(1)] == [[Barrier(0)], [Barrier(1)]]
    sender.finish()
    computed.set()
    await producing


async def test_delivered_items_are_taken_in_the_consumer_s_own_event_loop():
    calls = asyncio.get_running_loop()
    made: asyncio.Future[PushReceiver[Message]] = calls.create_future()

    async def consume() -> list[int]:
        receiver: PushReceiver[Message] = PushReceiver("learn", 4)
        calls.call_soon_threadsafe(made.set_result, receiver)
        return [number_of(item) async for item in receiver]

    consuming = asyncio.create_task(asyncio.to_thread(asyncio.run, consume()))
    receiver = await made
    answers = await asyncio.gather(
        *(receiver.deliver(number, Barrier(number)) for number in (1, 0)), receiver.deliver(2, None)
    )
    assert answers == [True, True, True]
    assert await consuming == [0, 1]
    assert await receiver.deliver(3, Barrier(3)) is False  # nobody is there any more

"""Queues over calls of a Ray actor: both sides in one event loop, with nothing of Ray between them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial

import pytest
from queue_conformance import check_queue, number_of, numbered

from headrace.queues.call_queue import PullReceiver, PushSender
from headrace.queues.errors import QueueClosed

ray = pytest.importorskip("ray")

from headrace.pipeline.hosts.ray.worker import (  # noqa: E402
    Caller,
    PolicyObjectStore,
    RayEdges,
    RaySource,
    deliver_to,
)

pytestmark = pytest.mark.virtual_time

LINE = {"maxlen": 2, "overflow": "wait", "sources": {}}
NEWEST = {"maxlen": 1, "overflow": "replace_oldest", "sources": {}}


class Method:
    """A method of an actor: a call takes a moment there and a moment back."""

    def __init__(self, method):
        self._method = method
        self.calls = 0

    def remote(self, *arguments):
        self.calls += 1
        return asyncio.ensure_future(self._call(arguments))

    async def _call(self, arguments):
        await asyncio.sleep(0.001)
        answer = await self._method(*arguments)
        await asyncio.sleep(0.001)
        return answer


class Actor:
    """The handle of a host's worker."""

    def __init__(self):
        self.edges = RayEdges(asyncio.get_running_loop())
        self.fetch, self.deliver, self.finish = map(Method, (self.edges.fetch, self.edges.deliver, self.edges.finish))


@pytest.fixture(autouse=True)
def _ray_runs(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: True)


@asynccontextmanager
async def fetched(maxlen):
    actor = Actor()
    sender = await actor.edges.open_sender("Ball", {**LINE, "maxlen": maxlen})
    receiver = PullReceiver("Ball", maxlen, {"actor-0": RaySource(actor)})
    yield sender, receiver
    receiver.close()
    await asyncio.sleep(1)


@asynccontextmanager
async def delivered(maxlen):
    actor = Actor()
    receiver = await actor.edges.open_receiver("Ball", {**LINE, "maxlen": maxlen})
    yield PushSender("Ball", maxlen, partial(deliver_to, actor, PolicyObjectStore())), receiver
    receiver.close()
    await asyncio.sleep(1)


@pytest.mark.parametrize("make", [fetched, delivered])
async def test_both_directions_do_what_every_queue_does(make):
    await check_queue(make, one_loop=False)


async def two_queues(actor, source):
    """Both ends of two queues from one host to one consumer: a line, and the newest item alone."""
    line, newest = await actor.edges.open_sender("line", LINE), await actor.edges.open_sender("newest", NEWEST)
    receivers = PullReceiver("line", 2, {"host": source}), PullReceiver("newest", 1, {"host": source}, "replace_oldest")
    await asyncio.sleep(1)
    return line, newest, *receivers


async def test_a_queue_works_when_another_queue_of_the_host_has_ended_or_is_not_read():
    actor = Actor()
    line, newest, from_line, from_newest = await two_queues(actor, RaySource(actor))
    await line.put(numbered(0))
    await asyncio.sleep(1)  # nobody takes it
    await newest.put(numbered(1))
    assert number_of(await from_newest.get()) == 1
    newest.close()
    with pytest.raises(QueueClosed):
        await from_newest.get()
    assert number_of(await from_line.get()) == 0
    await line.put(numbered(2))
    assert number_of(await from_line.get()) == 2
    line.close()
    with pytest.raises(QueueClosed):
        await from_line.get()
    await line.wait_closed()


OLD, NEW = Caller("learner-Ball", 1), Caller("learner-Ball", 2)


@asynccontextmanager
async def reading(actor, caller, refused):
    """A host's end of a queue, after its first call has come to the actor."""
    receiver = PullReceiver("Ball", 4, {"actor-0": RaySource(actor, caller, lambda: refused.append(caller))})
    await asyncio.sleep(1)
    yield receiver
    receiver.close()
    await asyncio.sleep(1)


@pytest.mark.parametrize("announced", [True, False], ids=["main says so", "the new one calls"])
async def test_the_newest_incarnation_of_a_reader_gets_every_item_and_an_older_one_that_lives_on_is_refused(announced):
    actor, refused = Actor(), []
    sender = await actor.edges.open_sender("Ball", {**LINE, "maxlen": 4})
    async with reading(actor, OLD, refused) as old:
        await sender.put(numbered(0))
        assert number_of(await old.get()) == 0
        await asyncio.sleep(1)
        if announced:
            actor.edges.admit(NEW)
            actor.edges.reconnect("Ball")
            await sender.put(numbered(1))
            await asyncio.sleep(1)
            assert refused == [OLD]
        async with reading(actor, NEW, refused) as new:
            if not announced:
                actor.edges.reconnect("Ball")
                await sender.put(numbered(1))
            for number in range(1, 20):
                assert number_of(await new.get()) == number
                await sender.put(numbered(number + 1))
            assert refused == [OLD]
            old.close()  # whose end is none of the new one's
            await asyncio.sleep(1)
            assert number_of(await new.get()) == 20
            await sender.put(numbered(21))
            assert number_of(await new.get()) == 21


async def test_an_older_incarnation_that_has_not_called_yet_is_refused_too():
    actor, refused = Actor(), []
    sender = await actor.edges.open_sender("Ball", LINE)
    async with reading(actor, NEW, refused) as new, reading(actor, OLD, refused) as old:
        await sender.put(numbered(0))
        assert number_of(await new.get()) == 0
        assert refused == [OLD]
        assert old.qsize() == 0


async def test_readers_of_several_hosts_do_not_refuse_each_other():
    actor, refused = Actor(), []
    sender = await actor.edges.open_sender("Ball", LINE)
    async with reading(actor, NEW, refused), reading(actor, Caller("learner-Bat", 1), refused):
        await sender.put(numbered(0))
        await asyncio.sleep(1)
        assert refused == []

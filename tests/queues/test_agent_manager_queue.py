from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from queue_conformance import Ends, check_queue
from virtual_time import DeadlockError, VirtualTimeLoop, until_blocked

from headrace.queues.agent_manager_queue import AgentManagerQueue
from headrace.queues.errors import QueueClosed, QueueEmpty, QueueFull
from headrace.queues.messages import Message

pytestmark = pytest.mark.virtual_time


@asynccontextmanager
async def local_queue(maxlen: int) -> AsyncIterator[Ends]:
    queue: AgentManagerQueue[Message] = AgentManagerQueue("Ball?team=0", maxlen)
    yield queue, queue


async def test_a_queue_within_one_loop_does_what_every_queue_does():
    await check_queue(local_queue)


@pytest.mark.parametrize("maxlen", [0, -1])
def test_a_bound_below_one_is_refused(maxlen: int):
    with pytest.raises(ValueError, match=f"queue 'Ball': maxlen must be at least 1, got {maxlen}"):
        AgentManagerQueue("Ball", maxlen)


async def test_the_queue_has_the_names_of_ml_agents_queue():
    queue: AgentManagerQueue[int] = AgentManagerQueue("Ball?team=0", maxlen=2)
    assert (queue.behavior_id, queue.maxlen) == ("Ball?team=0", 2)
    assert queue.empty()
    with pytest.raises(AgentManagerQueue.Empty):
        queue.get_nowait()
    await queue.put(7)
    assert (queue.empty(), queue.qsize()) == (False, 1)
    assert queue.get_nowait() == 7
    assert queue.empty()


async def test_with_replace_oldest_a_put_never_waits_and_a_get_gives_the_newest():
    pushed_out: list[int] = []
    queue: AgentManagerQueue[int] = AgentManagerQueue("Ball", 1, "replace_oldest", pushed_out.append)
    for version in range(4):
        await queue.put(version)
    assert await queue.get() == 3
    assert pushed_out == [0, 1, 2]
    assert queue.statistics().items_in == 4


async def test_the_stream_ends_with_its_last_producer():
    queue: AgentManagerQueue[int] = AgentManagerQueue("Ball", 4)
    first, second = queue.add_producer(), queue.add_producer()
    await first.put(1)
    first.close()
    first.close()
    with pytest.raises(QueueClosed, match="this producer"):
        await first.put(2)
    await second.put(3)
    assert not queue.closed
    second.close()
    assert [item async for item in queue] == [1, 3]
    with pytest.raises(QueueClosed, match="no more producers"):
        queue.add_producer()


async def test_room_promised_to_a_waiting_put_can_not_be_taken_by_another():
    queue: AgentManagerQueue[int] = AgentManagerQueue("Ball", 1)
    queue.put_nowait(0)
    waiting = asyncio.create_task(queue.put(1))
    await until_blocked()
    assert queue.get_nowait() == 0
    with pytest.raises(QueueFull):
        queue.put_nowait(2)
    await waiting
    assert queue.get_nowait() == 1


async def test_an_item_promised_to_a_waiting_get_can_not_be_taken_by_another():
    queue: AgentManagerQueue[int] = AgentManagerQueue("Ball", 1)
    waiting = asyncio.create_task(queue.get())
    await until_blocked()
    queue.put_nowait(0)
    with pytest.raises(QueueEmpty):
        queue.get_nowait()
    assert await waiting == 0


async def test_seconds_waited_are_counted_while_the_wait_lasts_and_after():
    loop = asyncio.get_running_loop()
    queue: AgentManagerQueue[int] = AgentManagerQueue("Ball", 1)
    getters = [asyncio.create_task(queue.get()) for _ in range(2)]
    await asyncio.sleep(10)
    assert queue.statistics().get_wait_s == pytest.approx(20)
    queue.put_nowait(0)
    await until_blocked()
    getters[1].cancel()
    await until_blocked()
    queue.put_nowait(1)
    putter = asyncio.create_task(queue.put(2))
    await asyncio.sleep(5)
    assert queue.statistics().put_wait_s == pytest.approx(5)
    queue.get_nowait()
    await putter
    started = loop.time()
    await asyncio.sleep(100)
    assert loop.time() - started == pytest.approx(100)
    assert queue.statistics().get_wait_s == pytest.approx(20)
    assert queue.statistics().put_wait_s == pytest.approx(5)


def test_virtual_time_reports_a_deadlock_instead_of_hanging():
    loop = VirtualTimeLoop()
    queue: AgentManagerQueue[int] = AgentManagerQueue("Ball", 1)
    task = loop.create_task(queue.get())
    with pytest.raises(DeadlockError):
        loop.run_until_complete(task)
    queue.close()
    with pytest.raises(QueueClosed):
        loop.run_until_complete(task)
    loop.close()


class QueueMachine(RuleBasedStateMachine):
    """Any mix of waiting, immediate and cancelled operations, against a model of deques."""

    maxlen = 2

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualTimeLoop()
        self.queue: AgentManagerQueue[int] = AgentManagerQueue("Ball", self.maxlen)
        self.next = 0
        self.items: deque[int] = deque()
        self.getters: deque[asyncio.Task[int]] = deque()
        self.putters: deque[tuple[asyncio.Task[None], int]] = deque()
        self.expected: list[tuple[asyncio.Task[Any], object]] = []
        self.closed = False

    def teardown(self) -> None:
        for task in (*self.getters, *(task for task, _ in self.putters)):
            task.cancel()
        self.settle()
        self.loop.close()

    def settle(self) -> None:
        self.loop.run_until_complete(until_blocked())
        for task, outcome in self.expected:
            if isinstance(outcome, type):
                assert isinstance(task.exception(), outcome)
            else:
                assert task.result() == outcome
        self.expected.clear()

    def model_step(self) -> None:
        while True:
            if self.items and self.getters:
                self.expected.append((self.getters.popleft(), self.items.popleft()))
            elif self.putters and self.closed:
                self.expected.append((self.putters.popleft()[0], QueueClosed))
            elif self.putters and len(self.items) < self.maxlen:
                task, item = self.putters.popleft()
                self.items.append(item)
                self.expected.append((task, None))
            elif self.getters and self.closed and not self.items:
                self.expected.append((self.getters.popleft(), QueueClosed))
            else:
                return

    def number(self) -> int:
        self.next += 1
        return self.next

    @rule()
    def put(self) -> None:
        item = self.number()
        self.putters.append((self.loop.create_task(self.queue.put(item)), item))
        self.model_step()
        self.settle()

    @rule()
    def get(self) -> None:
        self.getters.append(self.loop.create_task(self.queue.get()))
        self.model_step()
        self.settle()

    @rule()
    def put_nowait(self) -> None:
        item = self.number()
        if self.closed:
            with pytest.raises(QueueClosed):
                self.queue.put_nowait(item)
        elif len(self.items) == self.maxlen:
            with pytest.raises(QueueFull):
                self.queue.put_nowait(item)
        else:
            self.queue.put_nowait(item)
            self.items.append(item)
        self.model_step()
        self.settle()

    @rule()
    def get_nowait(self) -> None:
        if self.items:
            assert self.queue.get_nowait() == self.items.popleft()
        else:
            with pytest.raises(QueueClosed if self.closed else QueueEmpty):
                self.queue.get_nowait()
        self.model_step()
        self.settle()

    @precondition(lambda self: self.getters)
    @rule(which=st.integers(0, 99), item_at_hand=st.booleans())
    def cancel_get(self, which: int, item_at_hand: bool) -> None:
        if item_at_hand and not self.closed:
            self.items.append(self.number())
            self.queue.put_nowait(self.items[-1])
        task = self.getters[which % len(self.getters)]
        task.cancel()
        self.getters.remove(task)
        self.model_step()
        self.settle()

    @precondition(lambda self: self.putters)
    @rule(which=st.integers(0, 99), room_at_hand=st.booleans())
    def cancel_put(self, which: int, room_at_hand: bool) -> None:
        if room_at_hand:
            assert self.queue.get_nowait() == self.items.popleft()
        entry = self.putters[which % len(self.putters)]
        entry[0].cancel()
        self.putters.remove(entry)
        self.model_step()
        self.settle()

    @precondition(lambda self: self.next > 5)
    @rule()
    def close(self) -> None:
        self.queue.close()
        self.closed = True
        self.model_step()
        self.settle()

    @invariant()
    def counts_agree(self) -> None:
        seen = self.queue.statistics()
        assert seen.size == len(self.items)
        assert seen.size <= seen.high_water <= self.maxlen
        assert seen.items_in - seen.items_out == seen.size


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=20, stateful_step_count=30)

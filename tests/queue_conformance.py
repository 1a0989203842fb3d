"""What every kind of queue must do, whatever lies between its ends: `await check_queue(make)`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import numpy as np
import pytest
from virtual_time import until_blocked

from headrace.queues.ends import Receiver, Sender
from headrace.queues.errors import QueueClosed, QueueFull
from headrace.queues.messages import Barrier, Message, TrajectoryBatch

Ends = tuple[Sender[Message], Receiver[Message]]
Make = Callable[[int], AbstractAsyncContextManager[Ends]]


def numbered(number: int, trajectories: int = 2, length: int = 3, width: int = 4) -> TrajectoryBatch:
    """A batch whose number is its source, and in all its values."""
    n = trajectories * length
    return TrajectoryBatch(
        "Ball?team=0",
        source=number,
        rows={
            "obs_0": np.full((n, width), number, np.float32),
            "obs_1": np.full((n, 2), number % 256, np.uint8),
            "rewards": number + np.arange(n, dtype=np.float32),
        },
        trajectories={
            "lengths": np.full(trajectories, length, np.int32),
            "terminated": np.zeros(trajectories, np.bool_),
            "credits": np.full(trajectories, length, np.int32),
        },
        episodes={"episode_returns": np.full(1, number, np.float32)},
    )


async def check_queue(make: Make, *, one_loop: bool = True) -> None:
    """Everything below.

    Args:
        make: a context manager that opens a queue of this `maxlen`, ready for use, and gives both ends.
        one_loop: whether both ends run in this event loop, of virtual time, with nothing but the queue
            between them; false where another process passes the items on.
    """
    for check in (*_EVERYWHERE, *(_IN_ONE_LOOP if one_loop else ())):
        await check(make)


async def items_come_out_as_they_went_in(make: Make) -> None:
    async with make(2) as (sender, receiver):
        for number in range(6):
            await sender.put(numbered(number))
            item = await receiver.get()
            assert isinstance(item, TrajectoryBatch)
            assert_equal_batches(item, numbered(number))
            del item
        await sender.put(Barrier(7, source=3))
        assert await receiver.get() == Barrier(7, source=3)


async def the_order_is_kept_while_both_ends_run(make: Make) -> None:
    async with make(2) as (sender, receiver), asyncio.TaskGroup() as tasks:

        async def produce() -> None:
            for number in range(40):
                await sender.put(Barrier(number) if number % 5 == 4 else numbered(number))
            sender.close()

        tasks.create_task(produce())
        assert [number_of(item) async for item in receiver] == list(range(40))


async def as_many_puts_as_the_bound_need_no_taker_and_no_more(make: Make) -> None:
    async with make(2) as (sender, receiver), asyncio.TaskGroup() as tasks:
        puts, changed = 0, asyncio.Condition()

        async def produce() -> None:
            nonlocal puts
            for number in range(20):
                await sender.put(numbered(number))
                async with changed:
                    puts += 1
                    changed.notify_all()

        tasks.create_task(produce())
        for taken in range(20):
            async with changed:
                while puts < min(taken + 2, 20):
                    await changed.wait()
            for _ in range(20):  # time for a put that should not be
                await asyncio.sleep(0)
            assert puts <= taken + 2
            assert number_of(await receiver.get()) == taken


async def a_closed_queue_drains_and_then_ends(make: Make) -> None:
    async with make(2) as (sender, receiver):
        await sender.put(numbered(0))
        await sender.put(numbered(1))
        sender.close()
        sender.close()
        with pytest.raises(QueueClosed):
            await sender.put(numbered(2))
        assert [number_of(item) async for item in receiver] == [0, 1]
        with pytest.raises(QueueClosed):
            await receiver.get()


async def a_closed_queue_says_so_at_once(make: Make) -> None:
    async with make(1) as (sender, receiver):
        sender.close()
        with pytest.raises(QueueClosed):
            sender.put_nowait(numbered(2))
        with pytest.raises(QueueClosed):
            await receiver.get()


async def a_waiting_get_ends_when_the_queue_closes(make: Make) -> None:
    async with make(2) as (sender, receiver):
        getter = asyncio.create_task(receiver.get())
        await asyncio.sleep(0)
        sender.close()
        with pytest.raises(QueueClosed):
            await getter


async def a_producer_learns_that_nobody_takes_any_more(make: Make) -> None:
    async with make(2) as (sender, receiver):
        receiver.close()
        receiver.close()
        with pytest.raises(QueueClosed):
            await _put_for_ever(sender)


async def _put_for_ever(sender: Sender[Message]) -> None:
    for number in itertools.count():
        await sender.put(Barrier(number))


async def a_cancelled_get_loses_nothing(make: Make) -> None:
    async with make(2) as (sender, receiver):
        getter = asyncio.create_task(receiver.get())
        await asyncio.sleep(0)
        getter.cancel()
        await asyncio.wait([getter])
        await sender.put(numbered(0))
        await sender.put(numbered(1))
        assert [number_of(await receiver.get()) for _ in range(2)] == [0, 1]


async def a_cancelled_put_delivers_nothing(make: Make) -> None:
    async with make(2) as (sender, receiver):
        await sender.put(numbered(0))
        await sender.put(numbered(1))
        cancelled = asyncio.create_task(sender.put(numbered(2)))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert number_of(await receiver.get()) == 0
        await sender.put(numbered(3))
        assert [number_of(await receiver.get()) for _ in range(2)] == [1, 3]


async def a_waiting_put_ends_when_the_queue_closes(make: Make) -> None:
    async with make(2) as (sender, receiver):
        await sender.put(numbered(0))
        await sender.put(numbered(1))
        putter = asyncio.create_task(sender.put(numbered(2)))
        await asyncio.sleep(0)
        sender.close()
        with pytest.raises(QueueClosed):
            await putter
        assert [number_of(item) async for item in receiver] == [0, 1]


async def a_get_cancelled_with_its_item_at_hand_loses_nothing(make: Make) -> None:
    async with make(2) as (sender, receiver):
        first, second = asyncio.create_task(receiver.get()), asyncio.create_task(receiver.get())
        await until_blocked()
        sender.put_nowait(Barrier(0))
        first.cancel()
        await asyncio.wait([first])
        assert number_of(await second) == 0


async def put_nowait_says_full(make: Make) -> None:
    async with make(2) as (sender, receiver):
        sender.put_nowait(numbered(0))
        sender.put_nowait(numbered(1))
        with pytest.raises(QueueFull):
            sender.put_nowait(numbered(2))
        assert sender.qsize() == 2
        assert number_of(await receiver.get()) == 0
        assert number_of(await receiver.get()) == 1


async def waiting_puts_are_served_in_order(make: Make) -> None:
    async with make(1) as (sender, receiver):
        sender.put_nowait(Barrier(0))
        putters = [asyncio.create_task(sender.put(Barrier(number))) for number in (1, 2, 3)]
        await until_blocked()
        with pytest.raises(QueueFull):
            sender.put_nowait(Barrier(9))
        assert [number_of(await receiver.get()) for _ in range(4)] == [0, 1, 2, 3]
        await asyncio.gather(*putters)


async def waiting_gets_are_served_in_order(make: Make) -> None:
    async with make(1) as (sender, receiver):
        getters = [asyncio.create_task(receiver.get()) for _ in range(3)]
        await until_blocked()
        for number in range(3):
            await sender.put(Barrier(number))
        assert [number_of(item) for item in await asyncio.gather(*getters)] == [0, 1, 2]


async def a_put_cancelled_among_others_leaves_their_order(make: Make) -> None:
    async with make(1) as (sender, receiver):
        sender.put_nowait(Barrier(0))
        cancelled = asyncio.create_task(sender.put(Barrier(1)))
        patient = asyncio.create_task(sender.put(Barrier(2)))
        await until_blocked()
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert number_of(await receiver.get()) == 0
        assert number_of(await receiver.get()) == 2
        await patient


async def what_has_arrived_can_be_taken_after_the_consumer_closed(make: Make) -> None:
    async with make(2) as (sender, receiver):
        sender.put_nowait(numbered(0))
        sender.put_nowait(numbered(1))
        assert number_of(await receiver.get()) == 0
        await until_blocked()
        receiver.close()
        assert number_of(await receiver.get()) == 1
        with pytest.raises(QueueClosed):
            await receiver.get()


async def the_counts_add_up(make: Make) -> None:
    async with make(2) as (sender, receiver):
        before_in, before_out = sender.statistics().items_in, receiver.statistics().items_out
        getter = asyncio.create_task(receiver.get())
        await until_blocked()
        await sender.put(numbered(0))
        await getter
        del getter
        await sender.put(numbered(1))
        await sender.put(numbered(2))
        putter = asyncio.create_task(sender.put(numbered(3)))
        await until_blocked()
        seen = sender.statistics()
        assert (seen.items_in - before_in, seen.size, seen.maxlen, seen.high_water) == (3, 2, 2, 2)
        for _ in range(3):
            await receiver.get()
        await putter
        taken = receiver.statistics()
        assert taken.items_out - before_out == 4
        assert taken.size == 0


def number_of(item: Message) -> int:
    """The number that an item of these checks was made with."""
    if isinstance(item, Barrier):
        return item.number
    assert isinstance(item, TrajectoryBatch)
    assert item.rows["obs_0"].min() == item.rows["obs_0"].max() == item.source, "torn or poisoned"
    return item.source


def assert_equal_batches(got: TrajectoryBatch, expected: TrajectoryBatch) -> None:
    """Same fields, same columns in the same order, same values and dtypes."""
    assert (got.behavior_id, got.source) == (expected.behavior_id, expected.source)
    for axis in ("rows", "trajectories", "episodes", "games"):
        ours, theirs = getattr(got, axis), getattr(expected, axis)
        assert list(ours) == list(theirs)
        for name in theirs:
            assert ours[name].dtype == theirs[name].dtype
            np.testing.assert_array_equal(ours[name], theirs[name])


_EVERYWHERE = (
    items_come_out_as_they_went_in,
    the_order_is_kept_while_both_ends_run,
    as_many_puts_as_the_bound_need_no_taker_and_no_more,
    a_closed_queue_drains_and_then_ends,
    a_waiting_get_ends_when_the_queue_closes,
    a_waiting_put_ends_when_the_queue_closes,
    a_producer_learns_that_nobody_takes_any_more,
    a_cancelled_get_loses_nothing,
    a_cancelled_put_delivers_nothing,
)
_IN_ONE_LOOP = (
    a_closed_queue_says_so_at_once,
    a_get_cancelled_with_its_item_at_hand_loses_nothing,
    put_nowait_says_full,
    waiting_puts_are_served_in_order,
    waiting_gets_are_served_in_order,
    a_put_cancelled_among_others_leaves_their_order,
    what_has_arrived_can_be_taken_after_the_consumer_closed,
    the_counts_add_up,
)

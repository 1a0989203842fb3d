from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from queue_conformance import Ends, check_queue, number_of, numbered
from shared_ends import SLAB, closing, shared_queue
from virtual_time import VirtualTimeLoop, until_blocked

from headrace.queues.errors import QueueClosed, QueueFull
from headrace.queues.links import LinkSpec, TooLargeError, make_link
from headrace.queues.messages import Array, Barrier, Message, PolicyUpdate, TrajectoryBatch
from headrace.queues.shared_queue import STARVING_AFTER_S, SharedReceiver, SharedSender

virtual_time = pytest.mark.virtual_time


@asynccontextmanager
async def in_one_loop(maxlen: int) -> AsyncIterator[Ends]:
    async with shared_queue(LinkSpec(maxlen, SLAB)) as ((sender,), receiver):
        await until_blocked()  # the sender has heard that the first item was taken
        yield sender, receiver


@virtual_time
async def test_within_one_loop_it_does_what_every_queue_does():
    await check_queue(in_one_loop)


@virtual_time
async def test_on_a_plain_platform_it_does_what_every_queue_does(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADRACE_PLATFORM", "plain")
    await check_queue(in_one_loop)


@virtual_time
async def test_received_batches_are_read_only():
    async with shared_queue(LinkSpec(1, SLAB)) as ((sender,), receiver):
        await sender.put(numbered(1))
        batch = await receiver.get()
        assert isinstance(batch, TrajectoryBatch)
        with pytest.raises(ValueError, match="read-only"):
            batch.rows["rewards"][0] = 1.0


@virtual_time
async def test_a_slab_returns_with_the_last_view_of_it_and_not_before():
    async with shared_queue(LinkSpec(1, SLAB)) as ((sender,), receiver):
        await sender.put(numbered(7))
        batch = await receiver.get()
        assert isinstance(batch, TrajectoryBatch)
        view = batch.rows["obs_0"][1:3].T[::2]
        del batch
        await until_blocked()
        assert receiver.slabs_in_use == 1
        assert view.tolist() == [[7, 7], [7, 7]]
        del view
        await until_blocked()
        assert receiver.slabs_in_use == 0


@virtual_time
async def test_a_put_waits_while_the_consumer_has_views_of_every_slab():
    async with shared_queue(LinkSpec(1, SLAB, spare=1)) as ((sender,), receiver):
        kept = []
        for number in range(2):
            await sender.put(numbered(number))
            kept.append(await receiver.get())
        with pytest.raises(QueueFull):
            sender.put_nowait(numbered(2))
        putter = asyncio.create_task(sender.put(numbered(2)))
        await until_blocked()
        assert not putter.done()
        assert sender.qsize() == 0
        kept.pop()
        await putter
        assert [number_of(item) for item in (*kept, await receiver.get())] == [0, 2]


@virtual_time
async def test_a_consumer_that_keeps_every_slab_is_named_in_one_warning(caplog: pytest.LogCaptureFixture):
    async with shared_queue(LinkSpec(1, SLAB, spare=1)) as ((sender,), receiver):
        kept = []
        for number in range(2):
            await sender.put(numbered(number))
            kept.append(await receiver.get())
        putters = [asyncio.create_task(sender.put(numbered(number))) for number in (2, 3)]
        await asyncio.sleep(STARVING_AFTER_S - 0.1)
        assert caplog.messages == []
        await asyncio.sleep(10 * STARVING_AFTER_S)
        (warning,) = caplog.messages
        assert warning.startswith("queue 'Ball': a put has waited for 5 s because the consumer still uses 2 of 2")
        kept.clear()
        for _ in putters:
            await receiver.get()
        await asyncio.gather(*putters)


@virtual_time
async def test_a_put_that_waits_for_a_slow_consumer_does_not_warn(caplog: pytest.LogCaptureFixture):
    async with shared_queue(LinkSpec(1, SLAB, spare=1)) as ((sender,), receiver):
        await sender.put(numbered(0))
        putter = asyncio.create_task(sender.put(numbered(1)))
        await asyncio.sleep(10 * STARVING_AFTER_S)
        assert sender.statistics().put_wait_s == pytest.approx(10 * STARVING_AFTER_S)
        assert number_of(await receiver.get()) == 0
        await putter
        assert caplog.messages == []


async def test_the_slabs_of_dead_views_are_returned_before_the_work_on_the_next_item():
    """That work may hold the consumer's event loop for long, and the producer counts on these slabs."""
    mine, theirs = make_link(LinkSpec(2, SLAB, spare=1))
    working, done = threading.Event(), threading.Event()

    async def consume() -> None:
        async with closing(await SharedReceiver.open("Ball", [theirs])) as receiver:
            while receiver.qsize() < 2:  # noqa: ASYNC110 - both have to be there, so that no get waits
                await asyncio.sleep(0)
            await receiver.get()
            kept = await receiver.get()
            working.set()
            done.wait()
            assert number_of(kept) == 1

    def run() -> None:
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:  # of hosts
            runner.run(consume())

    consumer = asyncio.create_task(asyncio.to_thread(run))
    async with closing(await SharedSender.open("Ball", mine)) as sender:
        for number in range(2):
            await sender.put(numbered(number))
        await asyncio.to_thread(working.wait)
        try:
            for number in range(2, 4):  # for the last one the first one's slab is needed
                await sender.put(numbered(number))
        finally:
            done.set()
        await consumer


async def test_a_view_that_dies_in_another_thread_returns_its_slab():
    asyncio.get_running_loop().set_debug(True)  # it then checks that only its own thread calls it
    async with shared_queue(LinkSpec(1, SLAB, spare=1)) as ((sender,), receiver):
        kept = []
        for number in range(2):
            await sender.put(numbered(number))
            kept.append(await receiver.get())
        putter = asyncio.create_task(sender.put(numbered(2)))
        thread = threading.Thread(target=kept.clear)
        thread.start()
        await putter
        thread.join()
        assert number_of(await receiver.get()) == 2


@virtual_time
async def test_a_batch_larger_than_a_slab_travels_in_pieces_cut_between_trajectories():
    async with shared_queue(LinkSpec(2, SLAB)) as ((sender,), receiver):
        batch = numbered(3, trajectories=40, length=17)
        with pytest.raises(QueueFull):
            sender.put_nowait(batch)
        putter = asyncio.create_task(sender.put(batch))
        got: list[TrajectoryBatch] = []
        while sum(piece.num_rows for piece in got) < batch.num_rows:
            piece = await receiver.get()
            assert isinstance(piece, TrajectoryBatch)
            got.append(piece.copy())
            del piece
        await putter
        assert len(got) > 2
        assert all((piece.lengths == 17).all() for piece in got)
        np.testing.assert_array_equal(np.concatenate([piece.rewards for piece in got]), batch.rewards)
        assert [len(piece.episodes) for piece in got] == [0] * (len(got) - 1) + [1]


@virtual_time
async def test_a_put_cancelled_between_two_pieces_delivers_all_of_them_before_anything_else():
    async with shared_queue(LinkSpec(1, SLAB)) as ((sender,), receiver):
        batch = numbered(3, trajectories=40, length=17)
        cancelled = asyncio.create_task(sender.put(batch))
        await until_blocked()
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert cancelled.cancelled()
        following = asyncio.create_task(sender.put(Barrier(1)))
        rows = 0
        while not isinstance(item := await receiver.get(), Barrier):
            assert isinstance(item, TrajectoryBatch)
            rows += item.num_rows
            del item
        await following
        assert rows == batch.num_rows


@virtual_time
async def test_a_queue_closed_between_two_pieces_still_delivers_all_of_them():
    async with shared_queue(LinkSpec(1, SLAB)) as ((sender,), receiver):
        batch = numbered(3, trajectories=40, length=17)
        putter = asyncio.create_task(sender.put(batch))
        refused = asyncio.create_task(sender.put(Barrier(1)))
        await until_blocked()
        sender.close()
        rows = 0
        async for item in receiver:
            assert isinstance(item, TrajectoryBatch)
            rows += item.num_rows
            del item
        await putter
        assert rows == batch.num_rows
        with pytest.raises(QueueClosed):
            await refused


@virtual_time
async def test_an_item_too_large_to_split_is_refused_with_the_size_that_it_needs():
    async with shared_queue(LinkSpec(1, 256)) as ((sender,), receiver):
        batch = numbered(0, trajectories=3, length=10)
        with pytest.raises(TooLargeError, match=r"one trajectory of Ball\?team=0 needs 512 bytes.* is 256"):
            await sender.put(batch)
        policy = PolicyUpdate("Ball?team=0", 1, np.zeros(100, np.float32), (("w", (100,)),), 0)
        with pytest.raises(TooLargeError, match="a PolicyUpdate needs 448 bytes, but slab_bytes is 256"):
            await sender.put(policy)
        await until_blocked()
        assert (sender.statistics().items_in, receiver.qsize()) == (1, 0)


def policy(version: int) -> PolicyUpdate:
    return PolicyUpdate("Ball?team=0", version, np.full(50, version, np.float32), (("w", (50,)),), version)


@virtual_time
async def test_with_replace_oldest_puts_never_wait_and_the_receiver_gives_the_newest():
    async with shared_queue(LinkSpec(1, SLAB, overflow="replace_oldest")) as ((sender,), receiver):
        for version in range(8):
            await sender.put(policy(version))  # the receiver's loop does not run meanwhile
        await until_blocked()
        newest = await receiver.get()
        assert isinstance(newest, PolicyUpdate)
        assert (newest.version, newest.weights[0]) == (7, 7)
        await until_blocked()
        assert receiver.qsize() == sender.qsize() == 0
        assert sender.statistics().high_water == 1
        del newest
        await until_blocked()
        assert receiver.slabs_in_use == 0


@virtual_time
async def test_with_replace_oldest_the_newest_waits_for_the_consumer_to_let_go_of_a_slab():
    async with shared_queue(LinkSpec(1, SLAB, 1, "replace_oldest")) as ((sender,), receiver):
        kept = []
        for version in range(2):
            await sender.put(policy(version))
            kept.append(await receiver.get())
        for version in (2, 3):
            await sender.put(policy(version))
        await until_blocked()
        assert (sender.qsize(), receiver.qsize()) == (1, 0)
        sender.close()  # what it still has is delivered all the same
        kept.clear()
        assert [item.version async for item in receiver if isinstance(item, PolicyUpdate)] == [3]


@virtual_time
async def test_several_producers_are_merged_and_the_stream_ends_with_the_last():
    async with shared_queue(LinkSpec(2, SLAB), links_=3) as (senders, receiver):
        for number in range(2):
            for i, sender in enumerate(senders):
                await sender.put(numbered(10 * i + number))
        assert sorted([number_of(await receiver.get()) for _ in range(6)]) == [0, 1, 10, 11, 20, 21]
        for sender in senders[:2]:
            sender.close()
        await senders[2].put(numbered(22))
        assert number_of(await receiver.get()) == 22
        senders[2].close()
        assert [item async for item in receiver] == []


Action = tuple[str, int, int, int]
ACTIONS = st.tuples(
    st.sampled_from(["put", "put", "put", "big", "cancel", "get", "get", "get", "drop", "settle"]),
    st.integers(0, 1),
    st.integers(1, 3),
    st.integers(1, 9),
)


@pytest.mark.lengthy
@examples(30)
@given(maxlen=st.integers(1, 3), actions=st.lists(ACTIONS, max_size=60))
def test_nothing_is_lost_doubled_or_reordered_and_every_slab_returns(maxlen: int, actions: list[Action]):
    """Two producers put batches of any size, cancel some, the consumer keeps a view now and then."""
    loop = VirtualTimeLoop()
    try:
        loop.run_until_complete(_random_walk(LinkSpec(maxlen, 1024, spare=2), actions))
    finally:
        loop.close()


async def _random_walk(spec: LinkSpec, actions: list[Action]) -> None:
    async with shared_queue(spec, links_=2) as (senders, receiver):
        rows_put = [0, 0]
        puts: list[list[tuple[asyncio.Task[None], int, int]]] = [[], []]  # task, first row, row after the last
        got: list[list[int]] = [[], []]
        kept: list[tuple[Array, list[float]]] = []

        async def take(keep: bool) -> None:
            if receiver.qsize():
                item = await receiver.get()
                assert isinstance(item, TrajectoryBatch)
                got[item.source].extend(int(row) for row in item.rewards)
                if keep and not kept:
                    kept.append((item.rewards[::2], item.rewards[::2].tolist()))

        for what, who, trajectories, length in actions:
            match what:
                case "put" | "big":
                    count = trajectories * (10 if what == "big" else 1)
                    batch = _rows(who, rows_put[who], count, length)
                    task = asyncio.create_task(senders[who].put(batch))
                    puts[who].append((task, rows_put[who], rows_put[who] + batch.num_rows))
                    rows_put[who] += batch.num_rows
                case "cancel" if puts[who]:
                    puts[who][length % len(puts[who])][0].cancel()
                case "get":
                    await take(keep=length == 1)
                case "drop":
                    assert all(view.tolist() == values for view, values in kept), "a view that was kept changed"
                    kept.clear()
                case "settle":
                    await until_blocked()
        kept.clear()
        tasks = [task for by_sender in puts for task, *_ in by_sender]
        async with asyncio.TaskGroup() as group:
            group.create_task(_close_when_put(tasks, senders))
            async for item in receiver:
                assert isinstance(item, TrajectoryBatch)
                got[item.source].extend(int(row) for row in item.rewards)
                del item
        await until_blocked()
        assert receiver.slabs_in_use == 0
        for who in (0, 1):
            expected = []
            for task, first, end in puts[who]:
                rows = list(range(first, end))
                if not task.cancelled() or first in got[who]:  # cancelled: nothing, or everything
                    expected += rows
            assert got[who] == expected


async def _close_when_put(tasks: list[asyncio.Task[None]], senders: list[SharedSender[Message]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)
    for sender in senders:
        sender.close()


def _rows(source: int, first: int, trajectories: int, length: int) -> TrajectoryBatch:
    """Rows that are numbered through all batches of a producer."""
    n = trajectories * length
    return TrajectoryBatch(
        "Ball?team=0",
        source,
        {"rewards": first + np.arange(n, dtype=np.float32), "obs_0": np.zeros((n, 3), np.float64)},
        {"lengths": np.full(trajectories, length, np.int32)},
    )

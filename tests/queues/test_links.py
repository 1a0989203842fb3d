"""Death, replacement and nonsense at the other end of a link."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import struct
import sys

import pytest
from queue_child import child
from queue_conformance import number_of, numbered
from shared_ends import SLAB, closing, duplicate, shared_queue
from virtual_time import until_blocked
from wine import needs_ends_of_sockets

from headrace.queues import codec, links
from headrace.queues.errors import QueueClosed, ShapeError
from headrace.queues.links import LinkSpec, make_link
from headrace.queues.messages import Barrier, Message
from headrace.queues.shared_queue import SharedReceiver, SharedSender

virtual_time = pytest.mark.virtual_time


@needs_ends_of_sockets
@pytest.mark.lengthy
async def test_a_producer_that_is_killed_breaks_its_link_and_what_it_had_put_is_drained():
    theirs, ours = make_link(LinkSpec(3, SLAB))
    receiver: SharedReceiver[Message] = await SharedReceiver.open("Ball", [ours])
    async with closing(receiver):
        with child("produce", [theirs], first=0, count=3) as process:
            theirs.close()
            first = await receiver.get()
            process.kill()
            process.wait()
            rest = [number_of(item) async for item in receiver]
            assert rest == [1, 2][: len(rest)]
            assert number_of(first) == 0  # its memory stays


@needs_ends_of_sockets
@pytest.mark.lengthy
async def test_a_new_producer_takes_over_the_link_of_one_that_was_killed():
    theirs, ours = make_link(LinkSpec(2, SLAB, spare=2))
    receiver: SharedReceiver[Message] = await SharedReceiver.open("Ball", [ours])
    async with closing(receiver):
        with child("produce", [theirs], first=0, count=100) as process:
            kept = await receiver.get()
            process.kill()
            process.wait()
        with child("produce", [theirs], first=200, count=100):
            theirs.close()
            numbers: list[int] = []
            while not numbers or numbers[-1] < 230:
                item = await receiver.get()
                numbers.append(number_of(item))
                del item
            assert number_of(kept) == 0  # never given to the new one while somebody has it
            old = [number for number in numbers if number < 200]
            assert old == list(range(1, 1 + len(old)))
            assert numbers[len(old) :] == list(range(200, 231))
            assert receiver.statistics().high_water <= 2
    assert number_of(kept) == 0


@needs_ends_of_sockets
@pytest.mark.lengthy
async def test_a_new_receiver_takes_the_place_of_one_that_was_killed():
    ours, theirs = make_link(LinkSpec(2, SLAB, spare=2))
    sender: SharedSender[Message] = await SharedSender.open("Ball", ours)
    with child("keep", [theirs]) as process, contextlib.closing(theirs):
        for number in range(3):  # the first is taken, and kept; the two others are on their way
            await sender.put(numbered(number))
        waiting = asyncio.create_task(sender.put(numbered(3)))
        await asyncio.sleep(0)
        process.kill()
        process.wait()
        assert not waiting.done()
        receiver: SharedReceiver[Message] = await SharedReceiver.open("Ball", [theirs], succeeds=True)
        async with closing(receiver), closing(sender):
            sender.reconnect()
            assert number_of(await receiver.get()) == 3  # what the dead one had taken or not is lost with it
            await waiting
            for number in range(4, 20):  # all slabs are free again
                await sender.put(numbered(number))
                assert number_of(await receiver.get()) == number


async def test_a_sender_that_reconnects_to_a_running_receiver_loses_and_doubles_nothing():
    async with shared_queue(LinkSpec(3, SLAB)) as ((sender,), receiver):
        for number in range(2):
            await sender.put(numbered(number))
        sender.reconnect()
        for number in range(2, 5):
            await sender.put(numbered(number))
            assert number_of(await receiver.get()) == number - 2
        assert [number_of(await receiver.get()) for _ in range(2)] == [3, 4]


@pytest.mark.parametrize("cut", [1, 7, 40])
def test_a_successor_skips_what_a_dead_receiver_has_half_read(cut):
    frames = links.item(0, {"kind": "old"})[cut:] + links.item(1, {"kind": "old"})
    fresh = links.hello(b"n" * links.NONCE_BYTES) + links.item(0, {"kind": "new"})
    for size in (1, 3, 1000):
        reader, found, data = links.ForwardReader(succeeds=True), [], frames + fresh
        for start in range(0, len(data), size):
            found += reader.feed(data[start : start + size])
        assert [kind for kind, _ in found] == [links.ForwardKind.HELLO, links.ForwardKind.ITEM]
        assert links.read_item(found[1][1], LinkSpec(1, SLAB)) == (0, {"kind": "new"})


@needs_ends_of_sockets
@pytest.mark.lengthy
async def test_a_sender_whose_receiver_is_killed_gets_queue_closed():
    ours, theirs = make_link(LinkSpec(1, SLAB, spare=1))
    sender: SharedSender[Message] = await SharedSender.open("Ball", ours)
    async with closing(sender):
        with child("keep", [theirs]) as process:
            theirs.close()
            await sender.put(numbered(0))
            await sender.put(numbered(1))
            waiting = asyncio.create_task(sender.put(numbered(2)))
            await asyncio.sleep(0)
            process.kill()
            with pytest.raises(QueueClosed, match="its receiver disappeared"):
                await waiting
            with pytest.raises(QueueClosed):
                sender.put_nowait(Barrier(0))


@virtual_time
async def test_a_frame_left_half_written_by_a_dead_producer_is_skipped():
    spec = LinkSpec(2, SLAB)
    theirs, ours = make_link(spec)
    second = duplicate(theirs)
    receiver: SharedReceiver[Message] = await SharedReceiver.open("Ball", [ours])
    async with closing(receiver):
        header, _ = codec.describe(Barrier(1))
        frame = links.item(links.NO_SLAB, header)
        theirs.sock.send(links.hello(b"a" * 16) + frame + frame[:-5])
        assert await receiver.get() == Barrier(1)
        theirs.close()
        async with closing(await SharedSender.open("Ball", second)) as sender:
            await sender.put(Barrier(2))
            assert await receiver.get() == Barrier(2)


@pytest.mark.skipif(
    sys.platform == "win32", reason="a TCP connection that is closed before all was read is reset, there and back"
)
@virtual_time
async def test_items_sent_before_a_producer_died_arrive_although_replies_to_it_fail():
    theirs, ours = make_link(LinkSpec(2, SLAB))
    async with closing(await SharedReceiver.open("Ball", [ours])) as receiver:
        frames = [links.item(links.NO_SLAB, codec.describe(Barrier(number))[0]) for number in range(2)]
        theirs.sock.send(links.hello(b"a" * 16) + frames[0])
        await until_blocked()
        theirs.sock.send(frames[1])
        theirs.close()
        assert await receiver.get() == Barrier(0)  # telling the producer so fails, before the rest was read
        assert [item async for item in receiver] == [Barrier(1)]


@virtual_time
@pytest.mark.parametrize(
    ("sent", "complaint"),
    [
        (b"\x07" * 9, "a frame of kind 7"),
        (struct.pack("<BII", 1, 1 << 30, 0), "and 1073741824 bytes"),
        (struct.pack("<BII", 1, 2, 0) + b"ab", "checksum"),
        (links.item(3, {}), "an item in slab 3 of 3"),
        (links.item(0, {}) * 2, "slab 0, which is in use"),
        (links.item(links.NO_SLAB, {}) * 3, "more than 2 items"),
    ],
)
async def test_a_link_on_which_nonsense_comes_is_closed_and_named(
    sent: bytes, complaint: str, caplog: pytest.LogCaptureFixture
):
    theirs, ours = make_link(LinkSpec(2, SLAB, spare=1))
    async with closing(await SharedReceiver.open("Ball", [ours])):
        theirs.sock.send(links.hello(b"a" * 16) + sent)
        await until_blocked()
        assert complaint in caplog.text
        assert "queue 'Ball', link 0" in caplog.text
    theirs.close()


@pytest.mark.lengthy
@virtual_time
async def test_an_item_whose_header_is_not_a_message_raises_and_returns_its_slab():
    theirs, ours = make_link(LinkSpec(2, SLAB))
    async with closing(await SharedReceiver.open("Ball", [ours])) as receiver:
        theirs.sock.send(links.hello(b"a" * 16) + links.item(1, {"type": "Cow", "fields": {}, "arrays": []}))
        with pytest.raises(ShapeError, match="Cow"):
            await receiver.get()
        gc.collect()
        await until_blocked()
        assert receiver.slabs_in_use == 0
    theirs.close()


@virtual_time
async def test_a_producer_that_opens_after_its_consumer_closed_gets_queue_closed_despite_copies_of_the_end():
    theirs, ours = make_link(LinkSpec(1, SLAB))
    with contextlib.closing(duplicate(ours)):  # as main does for a host
        receiver: SharedReceiver[Message] = await SharedReceiver.open("Ball", [ours])
        receiver.close()
        sender: SharedSender[Message] = await SharedSender.open("Ball", theirs)
        with pytest.raises(QueueClosed):
            await sender.put(Barrier(0))
        sender.close()
        await sender.wait_closed()
        await receiver.wait_closed()

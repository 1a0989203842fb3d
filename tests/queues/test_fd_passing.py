from __future__ import annotations

import asyncio
import errno
import socket
import sys

import pytest

from headrace.queues import platform
from headrace.queues.platform import create_segment, hand_over, open_segment, open_socket, take_over, write_ticket

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there a ticket is good for any process at any time")


def handed(things, data=b"data"):
    ours, theirs = socket.socketpair()

    async def give():
        await hand_over(ours, things, data)
        ours.close()

    async def both():
        return (await asyncio.gather(asyncio.to_thread(take_over, theirs), give()))[0]

    with ours, theirs:
        return asyncio.run(both())


def test_passed_descriptors_work_after_the_sender_closed_its_own():
    near, far = socket.socketpair()
    segment = create_segment(4096)
    segment.map()[:5] = b"pages"
    tickets = write_ticket(far, 0), write_ticket(segment, 0)
    data, own = handed([far, segment])
    far.close()
    segment.close()
    with near, open_socket(own[tickets[0]]) as taken:
        taken.sendall(b"hello")
        assert near.recv(5) == b"hello"
    there = open_segment(own[tickets[1]], 4096)
    assert there.map()[:5] == b"pages"
    there.close()
    assert data == b"data"


@pytest.mark.parametrize("count", [0, 1, platform.AT_ONCE, platform.AT_ONCE + 1])
def test_any_number_of_things_arrives_in_order_and_any_amount_of_data(count):
    things = [create_segment(8) for _ in range(count)]
    for number, segment in enumerate(things):
        segment.map()[:2] = number.to_bytes(2, "little")
    data, own = handed(things, b"x" * 3_000_000)
    found = [open_segment(own[write_ticket(each, 0)], 8) for each in things]
    assert [int.from_bytes(each.map()[:2], "little") for each in found] == [*range(count)]
    assert len(data) == 3_000_000
    for each in (*things, *found):
        each.close()


def test_a_send_that_the_system_refuses_for_now_is_retried(monkeypatch):
    tried = []
    send = socket.send_fds

    def send_fds(*arguments):
        tried.append(1)
        if len(tried) < 3:
            raise OSError(errno.ETOOMANYREFS, "too many on the way")
        return send(*arguments)

    monkeypatch.setattr(socket, "send_fds", send_fds)
    near, far = socket.socketpair()
    ticket = write_ticket(near, 0)
    with near, far:
        _, own = handed([near])
        open_socket(own[ticket]).close()
    assert len(tried) == 3


def test_a_partial_handover_raises_eof_error():
    for part in (b"", b"\2\0", b"\2\0\0\0\0\0\0\0", b"\0\0\0\0\2\0\0\0x"):
        ours, theirs = socket.socketpair()
        with theirs:
            ours.sendall(part)
            ours.close()
            with pytest.raises(EOFError):
                take_over(theirs)

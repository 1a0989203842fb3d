"""Main's end of the control channel of a process."""

from __future__ import annotations

import asyncio
import socket

import pytest

from headrace.pipeline.control import HostFailed, HostFinished, LogLine, SocketControl
from headrace.pipeline.hosts.process import ProcessControl

pytestmark = pytest.mark.windows_too

FAILURE = HostFailed("the process of actor-0 ended with status 1", "", "actor-0")
LINE = LogLine(20, "headrace", "so far so good")


class Process:
    """In place of one, whose end is the test's."""

    def __init__(self, failure=None):
        self.ended = asyncio.get_running_loop().create_future()
        self.failure = failure

    async def wait(self):
        return await self.ended


@pytest.fixture
async def channel():
    """Main's end, and the host's, which nobody closes: what the host has forked holds it."""
    pairs = socket.socketpair(), socket.socketpair()
    (inward, says), (outward, hears) = pairs
    ours, theirs = await ProcessControl.open(inward, outward), await SocketControl.open(hears, says)
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.mark.parametrize("failure", [None, FAILURE])
async def test_the_channel_ends_with_the_process_and_its_error_comes_last(channel, failure):
    ours, theirs = channel
    ours.follow(dead := Process(failure), close_s=0.0)
    theirs.send(LINE)
    await theirs.drain()
    dead.ended.set_result(1)
    heard = [message async for message in ours.receive()]
    assert heard == [LINE, *([failure] if failure else [])]


async def test_a_host_that_has_said_goodbye_is_believed(channel):
    ours, theirs = channel
    ours.follow(dead := Process(FAILURE), close_s=0.0)
    theirs.send(HostFinished())
    dead.ended.set_result(0)
    assert [message async for message in ours.receive()] == [HostFinished()]

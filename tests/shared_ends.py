"""Both ends of shared queues in one event loop, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from headrace.queues.links import LinkEnd, LinkSpec, make_link
from headrace.queues.messages import Barrier, Message
from headrace.queues.shared_queue import SharedReceiver, SharedSender

SLAB = 4096
"""Bytes of a slab in these tests: a page, so that pools of whole slabs have no gaps."""


def duplicate(end: LinkEnd) -> LinkEnd:
    """Another handle to the same end, as a process has that keeps it for a replacement."""
    return LinkEnd(end.sock.dup(), end.segment.duplicate(), end.spec)


End = TypeVar("End", bound=SharedSender[Message] | SharedReceiver[Message])


@asynccontextmanager
async def closing(end: End) -> AsyncIterator[End]:
    """Close a queue end after the test."""
    try:
        yield end
    finally:
        end.close()
        await end.wait_closed()


@asynccontextmanager
async def shared_queue(
    spec: LinkSpec, links_: int = 1
) -> AsyncIterator[tuple[list[SharedSender[Message]], SharedReceiver[Message]]]:
    """Senders and their receiver in this event loop, welcomed and ready."""
    pairs = [make_link(spec) for _ in range(links_)]
    receiver: SharedReceiver[Message] = await SharedReceiver.open("Ball", [end for _, end in pairs])
    senders: list[SharedSender[Message]] = [await SharedSender.open("Ball", end) for end, _ in pairs]
    try:
        for sender in senders:
            await sender.put(Barrier(-1))  # waits until welcomed
            await receiver.get()
        yield senders, receiver
    finally:
        receiver.close()
        for sender in senders:
            sender.close()
            await sender.wait_closed()
        await receiver.wait_closed()

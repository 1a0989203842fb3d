"""A child process at the other end of shared queues, for tests: `python tests/queue_child.py`.

It reads its orders from standard input (one msgpack map) and does one of: put numbered batches and then wait to be
killed (`produce`), or keep one item and wait to be killed (`keep`).
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
from queue_conformance import numbered

from headrace.queues.links import LinkEnd
from headrace.queues.messages import Message
from headrace.queues.platform import Segment
from headrace.queues.shared_queue import SharedReceiver, SharedSender

_ROOT = Path(__file__).parent.parent


def child_options(*things: socket.socket | Segment) -> dict[str, Any]:
    """Keyword arguments for `subprocess.Popen` that let the child open these things."""
    if sys.platform == "win32":
        return {}
    return {"pass_fds": tuple(thing.handle if isinstance(thing, Segment) else thing.fileno() for thing in things)}


@contextmanager
def child(does: str, ends: list[LinkEnd], **orders: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A child that does this with these ends; the caller still has its own handles to them, to close."""
    process = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(_ROOT), str(_ROOT / "tests")])},
        **child_options(*(end.sock for end in ends), *(end.segment for end in ends)),
    )
    try:
        assert process.stdin is not None
        tickets = [end.ticket(process.pid) for end in ends]
        process.stdin.write(msgpack.packb({"does": does, "tickets": tickets, **orders}))
        process.stdin.close()
        yield process
    finally:
        process.kill()
        process.wait()


async def _produce(ends: list[LinkEnd], first: int, count: int) -> None:
    sender: SharedSender[Message] = await SharedSender.open("from child", ends[0])
    for number in range(first, first + count):
        await sender.put(numbered(number))
    await asyncio.Event().wait()


async def _keep(ends: list[LinkEnd]) -> None:
    receiver: SharedReceiver[Message] = await SharedReceiver.open("to child", [ends[0]])
    kept = await receiver.get()
    await asyncio.Event().wait()
    del kept


if __name__ == "__main__":
    orders = msgpack.unpackb(sys.stdin.buffer.read())
    does: Any = {"produce": _produce, "keep": _keep}[orders.pop("does")]
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:  # as in hosts
        runner.run(does([LinkEnd.from_ticket(ticket) for ticket in orders.pop("tickets")], **orders))

"""The head of a Ray cluster: where it answers, and the watch over it.

A minute after its end Ray ends every process that uses it, main too.
"""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import suppress

LOOK_EVERY_S = 2.0
MISSES = 3
"""Looks in a row at which nothing answered: then the head is gone."""
PATIENCE_S = 10.0
"""Seconds in which a head that has just been started begins to answer; Ray would wait for minutes."""


def first_to_answer(hosts: list[str], port: int) -> str:
    """Return the first of these hosts at which somebody answers at the port.

    Raises:
        ConnectionError: if nobody answers at any of them.
    """
    until = time.monotonic() + PATIENCE_S
    while True:
        for host in hosts:
            with suppress(OSError):
                socket.create_connection((host, port), LOOK_EVERY_S).close()
                return host
        if time.monotonic() > until:
            raise ConnectionError("nobody answers there")
        time.sleep(LOOK_EVERY_S / 4)


async def wait_until_gone(address: str) -> None:
    """Return when nobody answers any more at the head's `host:port`."""
    host, _, port = address.rpartition(":")
    misses = 0
    while misses < MISSES:
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            async with asyncio.timeout(LOOK_EVERY_S):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except (OSError, TimeoutError):
            misses += 1
        else:
            misses = 0
            writer.close()

"""The watch over the head of a Ray cluster: a minute after its end Ray ends every process that uses it, main too."""

from __future__ import annotations

import asyncio

LOOK_EVERY_S = 2.0
MISSES = 3
"""Looks in a row at which nothing answered: then the head is gone."""


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

"""Calls of the Ray actors that hold hosts: how the ends of queues elsewhere reach theirs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray.exceptions import RayError

from queues.errors import PeerLost
from queues.messages import PolicyUpdate

STORED_BYTES = 100_000
"""From here on Ray keeps an argument in its object store anyway: then once for all who get it."""


class RaySource:
    """A host on Ray as those who fetch from it see it.

    Args:
        actor: handle of its `RayWorker`.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._taken: Counter[str] = Counter()

    async def fetch(self, name: str) -> list[Any] | None:
        """As `FetchSource.fetch`."""
        with _lost():
            return await self._actor.fetch.remote(name)  # type: ignore[no-any-return]

    def taken(self, name: str, count: int) -> None:
        """As `FetchSource.taken`: one call for all that is taken at a time."""
        if not self._taken:
            asyncio.get_running_loop().call_soon(self._tell)
        self._taken[name] += count

    def finish(self, name: str) -> None:
        """As `FetchSource.finish`."""
        with suppress(PeerLost), _lost():
            self._actor.finish.remote(name)

    def _tell(self) -> None:
        with suppress(PeerLost), _lost():
            for name, count in self._taken.items():
                self._actor.taken.remote(name, count)
        self._taken.clear()


class RayDeliveries:
    """Delivers to hosts on Ray; what several of them get lies in the object store once."""

    def __init__(self) -> None:
        self._last: tuple[Any, Any] = (None, None)

    async def deliver(self, actor: Any, name: str, number: int, item: Any) -> bool:
        """As `queues.delivered.Deliver`, to a host."""
        with _lost():
            if isinstance(item, PolicyUpdate) and item.weights.nbytes >= STORED_BYTES:
                if item is not self._last[0]:
                    self._last = item, ray.put(item)
                item = self._last[1]
            return await actor.deliver.remote(name, number, item)  # type: ignore[no-any-return]


@contextmanager
def _lost() -> Iterator[None]:
    """Say of any call that fails, or comes when Ray has ended, that the other host is lost."""
    if not ray.is_initialized():
        raise PeerLost("Ray has ended")
    try:
        yield
    except RayError as error:
        raise PeerLost(str(error)) from error

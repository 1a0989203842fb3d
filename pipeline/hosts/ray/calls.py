"""Calls between the Ray actors that run hosts; they connect the two ends of each queue."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError

from headrace.pipeline.common.graph import MAIN
from headrace.queues.errors import PeerLost
from headrace.queues.messages import PolicyUpdate

STORED_BYTES = 100_000
"""Minimum size in bytes at which Ray stores a call's argument in its object store. This module stores each of these
arguments once, for all receivers."""


TURNS = 4
"""Number of event-loop turns that a call waits for others to join it. The effects of one message follow within a few
turns, which take less time than a second call.
"""


class Caller(NamedTuple):
    """A host that calls other hosts; these serve only its newest incarnation, because an older one may still run."""

    host: str
    incarnation: int = 0
    """Number that is higher for each replacement of the host; 0 for main."""


BY_MAIN = Caller(MAIN)


class RaySource:
    """A host on Ray from which others fetch items; one call can fetch from several of its queues.

    Args:
        actor: handle of the host's `RayWorker`.
        caller: the host that fetches.
        refused: called when the host refuses the caller, which main has replaced.
    """

    def __init__(self, actor: Any, caller: Caller = BY_MAIN, refused: Callable[[], object] = lambda: None) -> None:
        self._actor = actor
        self._reader = caller, secrets.token_hex(8)
        self._refused = refused
        self._counts: dict[str, int] = {}
        self._waiting: dict[str, asyncio.Future[list[Any] | None]] = {}
        self._next: asyncio.Task[None] | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def fetch(self, name: str, taken: int) -> list[Any] | None:
        """Fetch items; see `FetchSource.fetch`."""
        self._counts[name] = taken
        answer: asyncio.Future[list[Any] | None] = asyncio.get_running_loop().create_future()
        self._waiting[name] = answer
        self._call_soon()
        return await answer

    def finish(self, name: str) -> None:
        """End a queue; see `FetchSource.finish`."""
        with suppress(PeerLost), _lost():
            self._actor.finish.remote(self._reader, name)

    def _call_soon(self) -> None:
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._call(), name="fetching")

    async def _call(self) -> None:
        await _others()
        assert self._next is not None, "this is it"
        call, self._next = self._next, None
        counts, self._counts = self._counts, {}
        self._open.add(call)
        try:
            with _lost():
                answers = await self._actor.fetch.remote(self._reader, counts)
            if answers is None:
                self._refused()
                raise PeerLost(f"{self._reader[0].host} was replaced")
        except PeerLost as error:
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(error)
            self._waiting.clear()
            return
        finally:
            self._open.discard(call)
        for name, items in answers.items():
            answer = self._waiting.pop(name)
            if not answer.done():  # otherwise the consumer has closed the queue
                answer.set_result(items)
        if self._waiting and not self._open:
            self._call_soon()  # for the queues that had no item


class RayDeliveries:
    """Delivers items to a host on Ray.

    Args:
        actor: handle of the host's `RayWorker`.
        stored: the items in the object store that several hosts share.
    """

    def __init__(self, actor: Any, stored: PolicyObjectStore) -> None:
        self._actor = actor
        self._stored = stored
        self._keys: list[tuple[str, int]] = []
        self._items: list[Any] = []
        self._call: asyncio.Task[list[bool]] | None = None

    async def deliver(self, name: str, number: int, item: Any) -> bool:
        """Deliver an item like `Deliver`, but in one call with other items put at the same time.

        The call returns when all its items have been taken, so it suits items that are taken immediately: control
            messages and the newest policies.
        """
        if self._call is None:
            self._call = asyncio.get_running_loop().create_task(self._deliver(), name="delivering")
        place, call = len(self._keys), self._call
        self._keys.append((name, number))
        self._items.append(item)
        return (await asyncio.shield(call))[place]

    async def deliver_alone(self, name: str, number: int, item: Any) -> bool:
        """Deliver an item in a separate call; see `headrace.queues.push.Deliver`."""
        return (await self._send([(name, number)], [item]))[0]

    async def _deliver(self) -> list[bool]:
        await _others()
        keys, items = self._keys, self._items
        self._keys, self._items, self._call = [], [], None
        return await self._send(keys, items)

    async def _send(self, keys: list[tuple[str, int]], items: list[Any]) -> list[bool]:
        with _lost():
            return await self._actor.deliver.remote(keys, *map(self._stored.shared, items))  # type: ignore[no-any-return]


class PolicyObjectStore:
    """The newest large policy, stored once in Ray's object store for all receivers."""

    def __init__(self) -> None:
        self._last: tuple[Any, Any] = (None, None)

    def shared(self, item: Any) -> Any:
        """Return the item, or a reference to it in the object store if it is a large policy."""
        if not isinstance(item, PolicyUpdate) or item.weights.nbytes < STORED_BYTES:
            return item
        if item is not self._last[0]:
            self._last = item, ray.put(item)
        return self._last[1]


async def _others() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


@contextmanager
def _lost() -> Iterator[None]:
    """Raise `PeerLost` if a call in this context fails or Ray has already ended."""
    if not ray.is_initialized():
        raise PeerLost("Ray has ended")
    try:
        yield
    except RayError as error:
        raise PeerLost(str(error)) from error

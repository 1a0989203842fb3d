"""Policies that wait to be evaluated, as the inlet of the evaluation stage: of each behaviour the newest one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from headrace.queues.ends import Inlet
from headrace.queues.messages import PolicyUpdate


class WaitingPolicies:
    """Merges the policy queues of all behaviours, which are added while it is read; the longest waiting comes first.

    It ends when all queues have ended and nothing waits.

    Args:
        on_end: called when the last queue has ended, maybe long before the last policy is taken.
    """

    def __init__(self, on_end: Callable[[], None] = lambda: None) -> None:
        self._on_end = on_end
        self._waiting: dict[str, PolicyUpdate] = {}
        self._changed = asyncio.Event()
        self._open = 0
        self._ended = False

    async def follow(self, inlet: Inlet[PolicyUpdate]) -> None:
        """Take the policies of one queue until it ends."""
        self._open += 1
        try:
            async for policy in inlet:
                self._waiting[policy.behavior_id] = policy.copy()  # in the place of one that waits
                del policy  # its slab goes back when its last reference does
                self._changed.set()
        finally:
            inlet.close()
            self._open -= 1
            if not self._open:
                self._ended = True
                self._on_end()
            self._changed.set()

    async def __aiter__(self) -> AsyncIterator[PolicyUpdate]:
        """Yield policies."""
        while True:
            while self._waiting:
                yield self._waiting.pop(next(iter(self._waiting)))
            if self._ended:
                return
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        """Nothing to do: what follows is cancelled by its owner."""

"""The router: where an actor's trajectories part, each behaviour's to its own queue."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.queues.ends import Outlet
from headrace.queues.messages import Barrier, TrajectoryBatch
from headrace.stages.errors import StageError


class Router:
    """Sends trajectories to their behaviour's outlet, and barriers to all; waits for outlets that are yet to open."""

    def __init__(self) -> None:
        self._outlets: dict[str, Outlet[Any]] = {}
        self._expected: set[str] = set()
        self._opened = asyncio.Event()

    def expect(self, behavior: str) -> None:
        """There will be an outlet for this behaviour name."""
        self._expected.add(behavior)

    def open(self, behavior: str, outlet: Outlet[Any]) -> None:
        """Open the outlet of a behaviour name."""
        self._expected.add(behavior)
        self._outlets[behavior] = outlet
        self._opened.set()

    async def put(self, item: TrajectoryBatch | Barrier) -> None:
        """Wait until the item has a place in its outlet.

        Raises:
            StageError: if nobody has announced its behaviour, so that no outlet would ever open.
        """
        names = [item.behavior] if isinstance(item, TrajectoryBatch) else sorted(self._expected)
        if isinstance(item, TrajectoryBatch) and item.behavior not in self._expected:
            known = ", ".join(sorted(self._expected)) or "none"
            raise StageError(f"trajectories of {item.behavior_id!r} have no way to a trainer (behaviours: {known})")
        for name in names:
            while name not in self._outlets:
                self._opened.clear()
                await self._opened.wait()
            await self._outlets[name].put(item)

    def close(self) -> None:
        """Leave the outlets open: they end with their host, once it has said how it ends."""

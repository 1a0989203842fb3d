"""Gathers gRPC calls to share decisions: a call is answered only after all calls that arrived with it are read."""

from __future__ import annotations

import asyncio

QUIET_TURNS = 6
"""Number of event-loop turns without an arrival after which all calls count as read. gRPC delivers calls one by one, a
few turns apart. Six turns take 0.03 ms."""
CROWD, SLEEP_S = 16, 0.0005
"""Number of waiting calls at which the event loop sleeps, and for how many seconds. gRPC's thread also needs the core.
"""
MOST_S = 0.1
"""Seconds after which calls proceed even if more calls are still arriving."""


class Gathering:
    """Delays calls until no more arrive, then lets them proceed together.

    Attributes:
        arrived: number of calls so far, incremented by the caller.
    """

    def __init__(self) -> None:
        self.arrived = 0
        self._gate: asyncio.Event | None = None
        self._waiting = self._before = 0
        """Number of calls waiting now, and number of calls that last proceeded together."""

    async def wait(self) -> None:
        """Wait until no more calls arrive."""
        self._waiting += 1
        if self._gate is None:
            self._gate = asyncio.Event()
            self._look(self.arrived, QUIET_TURNS, asyncio.get_running_loop().time() + MOST_S)
        await self._gate.wait()

    def _look(self, arrived: int, turns: int, end: float) -> None:
        """Look for new calls at each turn, then sleep once; start over whenever a call arrives."""
        loop = asyncio.get_running_loop()
        if arrived != self.arrived:
            turns = QUIET_TURNS
        if turns > 0 and loop.time() < end:
            loop.call_soon(self._look, self.arrived, turns - 1, end)
        elif turns == 0 and max(self._waiting, self._before) >= CROWD:
            loop.call_later(SLEEP_S, self._look, self.arrived, -1, end)
        elif self._gate is not None:
            self._gate.set()
            self._gate, self._before, self._waiting = None, self._waiting, 0

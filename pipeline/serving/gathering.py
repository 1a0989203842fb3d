"""Why calls of gRPC share decisions: none is answered before those that have arrived with it are read."""

from __future__ import annotations

import asyncio

QUIET_TURNS = 6
"""Turns of the event loop without an arrival after which there is none left. gRPC hands over its calls one by one, each
some turns after the one before; six turns take 0.03 ms."""
CROWD, SLEEP_S = 16, 0.0005
"""So many calls that wait together, and for how long the loop sleeps then: gRPC's thread needs the core, too."""
MOST_S = 0.1
"""Seconds after which calls go on though others still arrive."""


class Gathering:
    """Lets calls go on together.

    Attributes:
        arrived: calls so far, counted by whoever takes them.
    """

    def __init__(self) -> None:
        self.arrived = 0
        self._gate: asyncio.Event | None = None
        self._waiting = self._before = 0
        """Calls that wait now, and that went on together before."""

    async def wait(self) -> None:
        """Wait until no more calls arrive."""
        self._waiting += 1
        if self._gate is None:
            self._gate = asyncio.Event()
            self._look(self.arrived, QUIET_TURNS, asyncio.get_running_loop().time() + MOST_S)
        await self._gate.wait()

    def _look(self, arrived: int, turns: int, end: float) -> None:
        """Go on turn by turn, then once asleep, and from the beginning when a call has arrived."""
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

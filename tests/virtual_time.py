"""An event loop whose time is virtual: nothing ever waits, an hour's timeout passes at once.

Opt in with `@pytest.mark.virtual_time` (see conftest.py), or make a `VirtualTimeLoop` where there is no loop.
Sockets work between tasks of the same loop. Other threads and processes don't: nobody waits for them.
"""

from __future__ import annotations

import asyncio
import selectors


class DeadlockError(Exception):
    """Every task waits, and no timer is set that could wake one of them."""


class _Selector(selectors.SelectSelector):
    """Never waits: what would have been waited is added to the time instead."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise DeadlockError("every task waits, and no timer is set")
        if not ready and timeout is not None:
            self.now += max(timeout, 0.0)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An ordinary event loop in all but time. In debug mode."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)
        # Timers that are due within it are called early: 15.6 ms on Windows, which `until_blocked` would not outwait.
        self._clock_resolution = 1e-9
        self.set_debug(True)

    def time(self) -> float:
        return self._virtual.now

    def pass_time(self, seconds: float) -> None:
        """Let time pass in which nothing else runs, as in a call that blocks."""
        self._virtual.now += seconds


async def until_blocked() -> None:
    """Let all other tasks run until each of them waits. Takes a nanosecond of virtual time."""
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop), "mark the test with virtual_time"
    await asyncio.sleep(1e-9)

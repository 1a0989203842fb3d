"""An event loop whose time is virtual: nothing ever waits, an hour's timeout passes at once.

Opt in with `@pytest.mark.virtual_time` (see conftest.py), or make a `VirtualTimeLoop` where there is no loop.
Sockets work between tasks of the same loop. Other processes don't: nobody waits for them. What
a thread is asked to do is done at once.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any


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

    def run_in_executor(  # type: ignore[override]  # its type names what it does not use
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Call it now: nobody could wait for a thread."""
        found: asyncio.Future[Any] = self.create_future()
        try:
            found.set_result(func(*args))
        except Exception as error:
            found.set_exception(error)
        return found

    def pass_time(self, seconds: float) -> None:
        """Let time pass in which nothing else runs, as in a call that blocks."""
        self._virtual.now += seconds


async def until_blocked() -> None:
    """Let all other tasks run until each of them waits. Takes a nanosecond of virtual time."""
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop), "mark the test with virtual_time"
    await asyncio.sleep(1e-9)

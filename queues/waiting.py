"""The tasks that wait at one end of a queue, in their order; a part of `agent_manager_queue`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class WaitingLine:
    """Tasks that wait for their turn at one end of a queue, first come first served."""

    __slots__ = ("_past_s", "promised", "waiters")

    def __init__(self) -> None:
        self.waiters: deque[tuple[asyncio.Future[bool], float]] = deque()
        """The waiting tasks, each with the loop's time at which its wait began."""
        self.promised = 0
        """Number of tasks that were promised their turn and have not run since."""
        self._past_s = 0.0

    def __len__(self) -> int:
        return sum(not future.done() for future, _ in self.waiters)

    def waited_s(self) -> float:
        """Seconds waited so far, summed over tasks."""
        return self._past_s + sum(future.get_loop().time() - since for future, since in self.waiters)

    async def wait(self, pass_on: Callable[[], None]) -> bool:
        """Wait for a promise; return True if one was made, False if dismissed.

        Args:
            pass_on: called when the wait is cancelled after the promise was made, to make it to another task.
        """
        loop = asyncio.get_running_loop()
        entry = (loop.create_future(), loop.time())
        self.waiters.append(entry)
        future, since = entry
        try:
            if not await future:
                return False
        except asyncio.CancelledError:
            if future.cancelled():
                # The one before it in line may have skipped it already.
                if entry in self.waiters:
                    self.waiters.remove(entry)
            elif future.result():
                self.promised -= 1
                pass_on()
            raise
        finally:
            self._past_s += loop.time() - since
        self.promised -= 1
        return True

    def promise(self) -> None:
        """Promise the first in line its turn."""
        future, _ = self.waiters.popleft()
        if not future.done():
            future.set_result(True)
            self.promised += 1

    def dismiss(self) -> None:
        """End all waits in vain."""
        while self.waiters:
            future, _ = self.waiters.popleft()
            if not future.done():
                future.set_result(False)

"""How long a program may take to answer: an answer that has come in time is taken, also where this process was late."""

from __future__ import annotations

import asyncio
from types import TracebackType

_HELD_S = 1.0
"""An event loop that looks at the clock later than this was held: by an import, a policy, or a machine without time.
What has arrived meanwhile has as long to be taken."""
_TURNS = 10
"""So often at most, as it may be held again before what has arrived has passed from the socket to who waits for it."""


class AnswerTime:
    """A time limit for what is awaited within it; a little more where the event loop was held when it was over.

    So an answer that arrived meanwhile is taken: nobody could take it before.

    Args:
        seconds: the limit.

    Raises:
        TimeoutError: if it is over.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)
        self._planned = 0.0
        self._turns = _TURNS

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()
        self._plan(self._seconds)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def _plan(self, seconds: float) -> None:
        self._planned = self._loop.time() + seconds
        self._timer = self._loop.call_at(self._planned, self._look)

    def _look(self) -> None:
        if self._turns and self._loop.time() - self._planned > _HELD_S:
            self._turns -= 1
            self._plan(_HELD_S)
        else:
            self._limit.reschedule(self._loop.time())

"""How long a program may take to answer: its own time alone, and none in which this process did not listen."""

from __future__ import annotations

import asyncio
from types import TracebackType

_HELD_S = 1.0
"""An event loop that looks at the clock later than this was held: by an import, a policy, or a machine without time."""


class AnswerTime:
    """A time limit for what is awaited within it; where the event loop was held, what was missed is waited for anew.

    An answer that arrived meanwhile is taken although its time is over: nobody could take it before.

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
        late = self._loop.time() - self._planned
        if late > _HELD_S:
            self._plan(min(late, self._seconds))
        else:
            self._limit.reschedule(self._loop.time())

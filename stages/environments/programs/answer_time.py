"""A time limit for a program's answer: an answer that arrived in time counts, even if this process reads it late."""

from __future__ import annotations

import asyncio
from types import TracebackType

_HELD_S = 1.0
"""If a wake-up is this many seconds late, the event loop was blocked, for example by an import, a policy or a busy
machine. The limit is then extended by this time, to receive the answers that arrived meanwhile."""
_TURNS = 10
"""Maximum number of extensions. Several may be needed, because the loop may block again before the data has passed from
the socket to its reader."""


class AnswerTime:
    """A time limit for the awaits in its context, extended a little if the event loop was blocked at the limit.

    So an answer that arrived while the loop was blocked still counts.

    Args:
        seconds: the limit.

    Raises:
        TimeoutError: after the limit.
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

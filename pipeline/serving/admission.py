"""Limits how many requests a server answers concurrently, adapting to the response time."""

from __future__ import annotations

from collections.abc import Callable

AIM_S = 0.025
"""Time in seconds within which nine of ten admitted requests should be answered. A client's p99 is about twice that,
because a request also waits in the socket before it is admitted."""
LEAST = 16
_RISE, _FALL = 0.05, 0.5
"""Increase of the limit for each timely answer, and decrease for each late one.

The two cancel out if one answer in eleven is late.
"""


class Admission:
    """Limits the number of requests in progress.

    How many requests a machine answers in time depends on its speed and on the model, so the limit follows the answers:
    additive increase, and a decrease ten times as large (like TCP's congestion window; Netflix's concurrency-limits
    does the same for servers).

    Args:
        most: the highest value of the limit.
        clock: returns the time in seconds.
        aim_s: returns the time in seconds within which nine of ten requests should be answered.

    Attributes:
        under_way: number of requests that have been admitted but not yet answered.
    """

    def __init__(self, most: int, clock: Callable[[], float], aim_s: Callable[[], float] = lambda: AIM_S) -> None:
        self._most = most
        self._least = min(LEAST, most)
        self._clock = clock
        self._bound: float = most
        self._aim_s = aim_s
        self.under_way = 0

    @property
    def bound(self) -> int:
        """The current limit on the number of requests in progress."""
        return int(self._bound)

    @property
    def full(self) -> bool:
        """True while no more requests are admitted."""
        return self.under_way >= self.bound

    def begin(self) -> float:
        """Count a request as admitted; return the value to pass to `end`."""
        self.under_way += 1
        return self._clock()

    def end(self, begun: float) -> None:
        """Count an admitted request as finished, whether it was answered or abandoned."""
        busy = self.under_way >= self._least  # with fewer requests, the response time says nothing about the limit
        self.under_way -= 1
        if busy:
            change = -_FALL if self._clock() - begun > self._aim_s() else _RISE
            self._bound = min(self._most, max(self._least, self._bound + change))

"""How many requests a server answers concurrently: a limit that adapts to the response time."""

from __future__ import annotations

import math
from collections.abc import Callable

AIM_S = 0.025
"""Seconds within which nine of ten admitted requests are usually answered. A client's p99 is about twice that, as the
request waits in the socket before it counts."""
LEAST = 16
_RISE, _FALL = 0.05, 0.5
"""Changes of the bound for each timely and each late answer: they cancel if one answer in eleven is late."""


class Admission:
    """Bounds the requests in progress.

    The number that a machine answers in time depends on its speed and on the model, so the bound follows the answers:
    additive increase, and a decrease ten times as large (like TCP's congestion window; Netflix's concurrency-limits
    does the same for servers).

    Args:
        most: the maximum of the bound; if infinite, every request is admitted.
        clock: returns the time in seconds.
        aim_s: returns the seconds within which nine of ten are answered.

    Attributes:
        under_way: requests that are admitted and not answered.
    """

    def __init__(self, most: float, clock: Callable[[], float], aim_s: Callable[[], float] = lambda: AIM_S) -> None:
        self._most = most
        self._least = min(LEAST, most)
        self._clock = clock
        self._bound = most
        self._aim_s = aim_s
        self.under_way = 0

    @property
    def bound(self) -> float:
        """The maximum number of requests in progress; once it is reached, none is admitted."""
        return self._bound if math.isinf(self._bound) else int(self._bound)

    @property
    def full(self) -> bool:
        """True if no further request is admitted."""
        return self.under_way >= self.bound

    def begin(self) -> float:
        """Count a request; returns what `end` needs."""
        self.under_way += 1
        return self._clock()

    def end(self, begun: float) -> None:
        """A request is answered, or given up."""
        busy = self.under_way >= self._least  # fewer requests say nothing about the bound
        self.under_way -= 1
        if busy and not math.isinf(self._most):
            change = -_FALL if self._clock() - begun > self._aim_s() else _RISE
            self._bound = min(self._most, max(self._least, self._bound + change))

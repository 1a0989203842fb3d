"""Chooses the number of threads that a trainer computes with, by timing its first updates.

More threads speed up image networks and wide networks, but slow down small ones. The effect also depends on the
machine. Each number of threads is therefore tried, and the fastest is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

ROUNDS = 5
"""Number of timed updates per number of threads, after an untimed first update in which libraries choose their
kernels."""
GAIN = 0.95
"""More threads must take at most this fraction of the time with fewer threads.

Otherwise, the additional threads stay free for other work.
"""
LEAST_S = 1e-3
"""Calls shorter than this many seconds made no update, or an update too short to benefit from threads."""


class ThreadChoice:
    """Tries several numbers of threads and chooses the fastest.

    Args:
        candidates: the numbers of threads to try, ascending; a single number is used without measuring.
        use: sets the number of threads for computations in the calling thread.
        tell: called with the chosen number, and the seconds per update with each number.
    """

    def __init__(
        self,
        candidates: Sequence[int],
        use: Callable[[int], None],
        tell: Callable[[int, Mapping[int, float]], None] = lambda threads, took: None,
    ) -> None:
        self._candidates, self._use, self._tell = candidates, use, tell
        self._chosen = candidates[0] if len(candidates) == 1 else None
        self._took: list[tuple[float, float]] = []
        """For each timed update, its duration in seconds, in total and per row."""

    @property
    def state(self) -> int | None:
        """The number of threads chosen by measuring; None if none has been chosen."""
        return self._chosen if len(self._candidates) > 1 else None

    def keep(self, threads: int) -> None:
        """Keep the number that another run of the same trainer chose, if there are several candidates."""
        if len(self._candidates) > 1:
            self._chosen = threads

    def begin(self) -> None:
        """Set the number of threads for the update that follows: the chosen one, or the next one to try."""
        self._use(self._chosen or self._candidates[max(0, len(self._took) - 1) % len(self._candidates)])

    def took(self, seconds: float, rows: int) -> None:
        """Record the duration of the update after `begin`, and the number of rows that it learned from."""
        if self._chosen is not None or seconds < LEAST_S or not rows:
            return
        self._took.append((seconds, seconds / rows))
        if len(self._took) <= ROUNDS * len(self._candidates):
            return
        tried = self._took[1:]
        of_threads = {n: tried[at :: len(self._candidates)] for at, n in enumerate(self._candidates)}
        per_row = {n: median(row for _, row in updates) for n, updates in of_threads.items()}
        best = self._candidates[0]
        for threads in self._candidates[1:]:
            if per_row[threads] < GAIN * per_row[best]:
                best = threads
        self._chosen = best
        self._tell(best, {n: median(whole for whole, _ in updates) for n, updates in of_threads.items()})


def candidates_for(cores: int) -> list[int]:
    """Return the numbers of threads to try on `cores` cores: 1, 2, 4, … and `cores`."""
    powers = [2**power for power in range(max(1, cores).bit_length())]
    return powers if powers[-1] >= cores else [*powers, cores]

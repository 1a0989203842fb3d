"""The number of threads that a trainer computes with, chosen by its first updates.

More threads speed up networks over images and wide ones, and slow down small ones; the machine matters as well. Each
number is therefore tried in turn, and the fastest is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

ROUNDS = 3
"""Updates with each number of threads, after a first one in which libraries choose their kernels."""
GAIN = 0.9
"""More threads must take at most this share of the time with fewer: for a smaller gain they stay free for others."""
LEAST_S = 1e-3
"""Seconds below which a call made no update, or one too short for threads to help."""


class ThreadChoice:
    """Numbers of threads, of which the fastest is chosen.

    Args:
        candidates: the numbers, ascending; a single one is used without measuring.
        use: sets the number of threads of the calling thread's computations.
        tell: receives the chosen number, and the seconds of an update with each.
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
        """Seconds of each update, and seconds per row."""

    @property
    def state(self) -> int | None:
        """The number that was chosen by measuring; None if none has been chosen."""
        return self._chosen if len(self._candidates) > 1 else None

    def keep(self, threads: int) -> None:
        """Keep the choice of another run of the same trainer, if there are several candidates."""
        if len(self._candidates) > 1:
            self._chosen = threads

    def begin(self) -> None:
        """Use the chosen number, or otherwise the next one to be tried; an update follows."""
        self._use(self._chosen or self._candidates[max(0, len(self._took) - 1) % len(self._candidates)])

    def took(self, seconds: float, rows: int) -> None:
        """Note the duration of the update after `begin`, and how many rows it learned from."""
        if self._chosen is not None or seconds < LEAST_S or not rows:
            return
        self._took.append((seconds, seconds / rows))
        if len(self._took) <= ROUNDS * len(self._candidates):
            return
        tried = self._took[1:]
        each = {n: tried[at :: len(self._candidates)] for at, n in enumerate(self._candidates)}
        per_row = {n: median(row for _, row in found) for n, found in each.items()}
        best = self._candidates[0]
        for threads in self._candidates[1:]:
            if per_row[threads] < GAIN * per_row[best]:
                best = threads
        self._chosen = best
        self._tell(best, {n: median(whole for whole, _ in found) for n, found in each.items()})


def candidates_for(cores: int) -> list[int]:
    """Numbers of threads to try on `cores` cores: 1, 2, 4, … and all."""
    found = [1]
    while 2 * found[-1] <= cores:
        found.append(2 * found[-1])
    return found if found[-1] == max(1, cores) else [*found, cores]

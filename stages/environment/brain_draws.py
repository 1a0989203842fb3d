"""The draws of brains: in which games which of the brains that do not learn decide for which behaviour id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from headrace.config.brains import drawn
from headrace.queues.specs import BehaviorSpec, behavior_team


class BrainDraws:
    """Draws a number from [0, 1) for each team of each game that begins.

    What a number means follows from the shares of the brains: the first one decides below its share, the next one below
    the sum of both, and so on. So behaviours of a team with equal shares get the brains of equal places: in a fifth of
    its games a team is decided by one script, not each of its members in another fifth.

    Attributes:
        random: the source of all chance.
    """

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self._shares: dict[str, list[float]] = {}
        self._teams: list[int] = []

    def __bool__(self) -> bool:
        """Return True if there is anything to draw."""
        return bool(self._teams)

    def add(self, spec: BehaviorSpec, shares: Sequence[float], *, differ: bool) -> None:
        """Add the shares of a behaviour id's brains; `differ` is False if every draw means the same."""
        self._shares[spec.behavior_id] = [*shares]
        if differ:
            self._teams = sorted({*self._teams, spec.team})

    def draw(self, count: int) -> Iterator[dict[int, float]]:
        """Draw for so many games; yields a number for each team."""
        # In the precision of the column in which results carry it: what is read from there must mean the same.
        numbers = self.random.random((count, len(self._teams)), np.float32)
        for row in numbers.tolist():
            yield dict(zip(self._teams, row, strict=True))

    def chosen(self, behavior_id: str, draws: dict[int, float]) -> int:
        """Return the place of the brain that decides for a behaviour id in a game; -1 if it is none of them."""
        return drawn(self._shares[behavior_id], draws.get(behavior_team(behavior_id), 0.0))

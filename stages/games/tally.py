"""Results of games between two players, as the games of this package count them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Tally(NamedTuple):
    """Results of games from the first player's side."""

    wins: int
    draws: int
    losses: int

    @classmethod
    def of(cls, outcomes: NDArray[np.float32]) -> Tally:
        """Count outcomes [games] of the first player: 1 for a win, 0.5 for a draw, 0 for a loss."""
        return cls(*(int((outcomes == outcome).sum()) for outcome in (1.0, 0.5, 0.0)))

    @property
    def win_rate(self) -> float:
        """Share of games won."""
        return self.wins / sum(self)

    @property
    def score(self) -> float:
        """Wins and half the draws, as a share of the games."""
        return (self.wins + 0.5 * self.draws) / sum(self)

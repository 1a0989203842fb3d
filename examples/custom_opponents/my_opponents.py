"""Opponents that are about as good as the learner, so that games are neither hopeless nor easy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace import Candidate


class Rivals:
    """Chooses among snapshots, favouring those that win half of their games.

    The weight of a snapshot with win rate p is f(p) = p (1 - p) (Vinyals et al. 2019, `f_var`).

    Args:
        newest: factor on the probability of the newest snapshot, which has played only a few games.
    """

    def __init__(self, newest: float = 1.0) -> None:
        self._newest = newest

    def choose(self, candidates: Sequence[Candidate], random: np.random.Generator) -> int:
        """Choose a snapshot; the closer its win rate is to a half, the more likely it is chosen."""
        weights = np.array([candidate.beaten * (1.0 - candidate.beaten) for candidate in candidates])
        weights[-1] *= self._newest
        return candidates[int(random.choice(len(candidates), p=weights / weights.sum()))].number

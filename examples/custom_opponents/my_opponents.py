"""Opponents that are about as good as the learner: neither hopeless games nor easy ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace import Candidate


class Rivals:
    """Chooses among the snapshots that win about every other game, by f(p) = p (1 - p) (Vinyals et al. 2019, `f_var`).

    Args:
        newest: factor on the probability of the newest snapshot, which has played few games yet.
    """

    def __init__(self, newest: float = 1.0) -> None:
        self._newest = newest

    def choose(self, candidates: Sequence[Candidate], random: np.random.Generator) -> int:
        """Choose a snapshot, the more likely the closer its share of won games is to a half."""
        weights = np.array([candidate.beaten * (1.0 - candidate.beaten) for candidate in candidates])
        weights[-1] *= self._newest
        return candidates[int(random.choice(len(candidates), p=weights / weights.sum()))].number

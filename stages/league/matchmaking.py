"""Matchmaking: whom a learner meets, as a distribution over opponents (docs/league-rules.md)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

OWN = -1
"""The player code of the learner's own newest policy."""
TINY = 1e-10
"""Weights that add up to less are none: all are equally likely then."""


def learner_code(index: int) -> int:
    """The player code of the newest policy of a league's learner, by its place among the learners."""
    return -2 - index


def weighted(chances: Sequence[float], weighting: str) -> Floats:
    """The probabilities with which opponents are drawn, from those of beating each (Vinyals et al. 2019).

    Args:
        chances: [n] at least one.
        weighting: `squared`, `variance`, `linear`, `linear_capped` or `uniform`.
    """
    p = np.asarray(chances, np.float64)
    weights = {
        "squared": (1 - p) ** 2,
        "variance": p * (1 - p),
        "linear": 1 - p,
        "linear_capped": np.minimum(0.5, 1 - p),
        "uniform": np.ones_like(p),
    }[weighting]
    total = weights.sum()
    return weights / total if total >= TINY else np.full(len(p), 1 / len(p))

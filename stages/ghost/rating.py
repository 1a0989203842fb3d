"""ELO: the rating of policies by the games that they have played against each other."""

from __future__ import annotations

import math
from collections.abc import Sequence


def expected_score(rating: float, opponent: float) -> float:
    """The score (1 won, 0.5 drawn, 0 lost) that ELO expects against an opponent (Elo 1978, eq. 1.5)."""
    return 1.0 / (1.0 + math.pow(10.0, (opponent - rating) / 400.0))


def points_lost(rating: float, opponents: Sequence[float], outcomes: Sequence[float], k: float) -> list[float]:
    """How many points each of several opponents in one game loses to a side, which gains the sum of it.

    A game of more than two sides counts as duels with all opponents, of equal weight, that together are worth one game.

    Args:
        rating: rating of the side that the outcomes are told for.
        opponents: ratings of the others.
        outcomes: how that side did against each: 1 won, 0.5 drawn, 0 lost.
        k: how many points a wholly unexpected win moves.
    """
    return [
        k * (outcome - expected_score(rating, opponent)) / len(opponents)
        for opponent, outcome in zip(opponents, outcomes, strict=True)
    ]

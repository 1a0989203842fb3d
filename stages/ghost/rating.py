"""ELO: the rating of a policy among its own past selves."""

from __future__ import annotations

import math


def expected_score(rating: float, opponent: float) -> float:
    """The score (1 won, 0.5 drawn, 0 lost) that ELO expects against an opponent (Elo 1978, eq. 1.5)."""
    return 1.0 / (1.0 + math.pow(10.0, (opponent - rating) / 400.0))


def rated(rating: float, opponent: float, outcome: float, k: float) -> tuple[float, float]:
    """Both ratings after one game; what the one gains the other loses.

    Args:
        rating: rating of the side that the outcome is told for.
        opponent: rating of the other side.
        outcome: 1 won, 0.5 drawn, 0 lost.
        k: how many points a wholly unexpected win moves.
    """
    change = k * (outcome - expected_score(rating, opponent))
    return rating + change, opponent - change

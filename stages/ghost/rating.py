"""Rating systems: Elo for games of two sides, openskill's Plackett-Luce model (Weng and Lin 2011) for more teams.

openskill is an extra (`league`) and is imported only when a game of more than two teams is first rated.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

from stages.ghost.policy_history import Record

log = logging.getLogger(__name__)

SIGMAS = 3.0
"""The skill shown is the mean less this many standard deviations: a lower bound of the policy's strength."""


def expected_score(rating: float, opponent: float) -> float:
    """The score (1 won, 0.5 drawn, 0 lost) that Elo expects against an opponent (Elo 1978, eq. 1.5)."""
    return 1.0 / (1.0 + math.pow(10.0, (opponent - rating) / 400.0))


def points_lost(rating: float, opponents: Sequence[float], outcomes: Sequence[float], k: float) -> list[float]:
    """The Elo points that each opponent in a game loses to one side, which gains the sum of them.

    A game of more than two sides counts as duels with all opponents, of equal weight, that together are worth one game.

    Args:
        rating: rating of the one side.
        opponents: ratings of the others.
        outcomes: the side's result against each opponent: 1 won, 0.5 drawn, 0 lost.
        k: the points that a wholly unexpected win moves.
    """
    return [
        k * (outcome - expected_score(rating, opponent)) / len(opponents)
        for opponent, outcome in zip(opponents, outcomes, strict=True)
    ]


class SkillRating:
    """Updates the skills in records; without openskill it does nothing, and warns once."""

    def __init__(self) -> None:
        self._model: Any = None
        self._missing = False

    def rate(self, teams: Sequence[Sequence[Record]], outcomes: Sequence[float]) -> bool:
        """Update the skills of the policies of one finished game.

        Args:
            teams: the policies that played, by team. One that played several times gets the mean of its new ratings.
            outcomes: each team's result; more is better, and equal is a draw.

        Returns:
            False without openskill.
        """
        model = self._find_model()
        if model is None:
            return False
        before = [[self._rating(model, record) for record in team] for team in teams]
        after = model.rate(before, scores=list(outcomes))
        found: dict[int, tuple[Record, list[Any]]] = {}
        for team, ratings in zip(teams, after, strict=True):
            for record, rating in zip(team, ratings, strict=True):
                found.setdefault(id(record), (record, []))[1].append(rating)
        for record, ratings in found.values():
            record.mu = sum(rating.mu for rating in ratings) / len(ratings)
            record.sigma = sum(rating.sigma for rating in ratings) / len(ratings)
        return True

    def _find_model(self) -> Any:
        if self._model is None and not self._missing:
            try:
                from openskill.models import PlackettLuce
            except ImportError:
                self._missing = True
                log.warning(
                    "More than two teams play each other, for which ELO is a makeshift; a better rating, "
                    "Self-play/Skill, needs openskill: pip install 'headrace[league]'."
                )
            else:
                self._model = PlackettLuce()
        return self._model

    @staticmethod
    def _rating(model: Any, record: Record) -> Any:
        if record.mu is None or record.sigma is None:
            return model.rating()
        return model.rating(mu=record.mu, sigma=record.sigma)


def skill(record: Record) -> float | None:
    """A lower bound of a policy's strength; None before its first game of more than two teams."""
    return None if record.mu is None or record.sigma is None else record.mu - SIGMAS * record.sigma

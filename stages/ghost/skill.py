"""Ratings of games between more than two teams, by openskill's Plackett-Luce model (Weng and Lin 2011).

ELO is about two sides; what is made of it for more (see `rating`) is a makeshift. openskill is an extra (`league`) and
is imported only when such a game is first rated.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from stages.ghost.lineage import Record

log = logging.getLogger(__name__)

SIGMAS = 3.0
"""A skill is told as the mean less so many standard deviations: what the policy can at least be trusted with."""


class SkillRating:
    """Rates records in place; does nothing, and says so once, where openskill is not installed."""

    def __init__(self) -> None:
        self._model: Any = None
        self._missing = False

    def rate(self, teams: Sequence[Sequence[Record]], outcomes: Sequence[float]) -> bool:
        """One game has ended.

        Args:
            teams: the policies that played, by team. One that played several times gets the mean of its new ratings.
            outcomes: how each team did; more is better, and equal is a draw.

        Returns:
            whether there are ratings now.
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
    """The one number to show; None before the first game."""
    return None if record.mu is None or record.sigma is None else record.mu - SIGMAS * record.sigma

"""Rating systems: Elo, and openskill's Plackett-Luce model (Weng and Lin 2011) for games between more than two teams.

openskill belongs to the optional extra `league`, and is imported when the first game between more than two teams is
rated.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.stages.ghost.policy_history import Record

log = logging.getLogger(__name__)

SIGMAS = 3.0
"""The reported skill is the mean minus this many standard deviations, a lower bound on the policy's strength."""
MEAN_RATING = 1200.0
"""Mean of the ratings returned by `fitted_ratings`."""
_MOST_ROUNDS, _STEADY = 10_000, 1e-9
"""The maximum number of iterations of a fit, and the largest change in log ratings at which the fit has converged."""


def expected_score(rating: float, opponent: float) -> float:
    """Return the score (1 won, 0.5 drawn, 0 lost) that Elo expects against an opponent (Elo 1978, eq. 1.5)."""
    return 1.0 / (1.0 + math.pow(10.0, (opponent - rating) / 400.0))


def points_lost(rating: float, opponents: Sequence[float], outcomes: Sequence[float], k: float) -> list[float]:
    """Return the Elo points that each opponent in a game loses to one side, which gains their sum.

    A game with more than two sides counts as one duel per opponent. The duels have equal weights and together count as
    one game.

    Args:
        rating: the side's rating.
        opponents: the ratings of the other sides.
        outcomes: the side's result against each opponent: 1 if won, 0.5 if drawn, 0 if lost.
        k: the points that a completely unexpected win transfers.
    """
    return [
        k * (outcome - expected_score(rating, opponent)) / len(opponents)
        for opponent, outcome in zip(opponents, outcomes, strict=True)
    ]


def fitted_ratings(
    points: NDArray[np.float64], games: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fit the Elo ratings that best explain the results of many games; the games' order does not matter.

    This is the maximum-likelihood fit of the Bradley-Terry model by minorization-maximization (Hunter 2004, eq. 3). For
    each player, two games are added against a player of average strength, one won and one lost. These games keep the
    ratings finite for players that have no games, or only wins.

    Args:
        points: [P, P] points of the row's player against the column's player: 1 for a win, 0.5 for a draw.
        games: [P, P] the number of games between the two players.

    Returns:
        [P] ratings with mean `MEAN_RATING`, and [P] half the width of each rating's 95 % confidence interval.
    """
    strength = np.ones(len(points))
    won = points.sum(axis=1) + 1.0
    for _ in range(_MOST_ROUNDS):
        before = strength
        strength = won / ((games / (strength[:, None] + strength)).sum(axis=1) + 2.0 / (strength + 1.0))
        if np.abs(np.log(strength / before)).max() < _STEADY:
            break
    chance = strength[:, None] / (strength[:, None] + strength)
    information = -games * chance * (1 - chance)
    np.fill_diagonal(information, 0.0)
    known = -information.sum(axis=1) + 2.0 * strength / (strength + 1.0) ** 2
    centre = np.eye(len(points)) - 1.0 / len(points)
    spread = np.sqrt(np.diag(centre @ np.linalg.inv(information + np.diag(known)) @ centre))
    points_per_nat = 400.0 / math.log(10.0)
    return MEAN_RATING + points_per_nat * (centre @ np.log(strength)), 1.96 * points_per_nat * spread


class SkillRating:
    """Updates the skills in records. Without openskill, it warns once and does nothing."""

    def __init__(self) -> None:
        self._model: Any = None
        self._missing = False

    def rate(self, teams: Sequence[Sequence[Record]], outcomes: Sequence[float]) -> bool:
        """Update the skills of the policies that played in one finished game.

        Args:
            teams: the policies that played in each team. A policy that played several times in the game gets the mean
                of its new ratings.
            outcomes: each team's result; higher is better, and equal results are a draw.

        Returns:
            False if openskill is not installed.
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
                    "ELO is only an approximation for games with more than two teams; a better rating, "
                    'Self-play/Skill, needs openskill: pip install "headrace[league]".'
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
    """Return a lower bound on a policy's strength; None before its first game between more than two teams."""
    return None if record.mu is None or record.sigma is None else record.mu - SIGMAS * record.sigma

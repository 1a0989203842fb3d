"""The results of games, from the rewards of each team.

Axis letters: g games, T teams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from headrace.stages.errors import NotFiniteError

OutcomeRule = Literal["return", "last_reward"]

_TIE = 1e-6
"""Scores that differ by less, relative to their size, are equal: sums of floats in another order are."""


class TeamScores:
    """The rewards of each team in the running game of one instance.

    Args:
        teams: T.
    """

    __slots__ = ("_last", "_total")

    def __init__(self, teams: int) -> None:
        self._total = [0.0] * teams
        self._last = [0.0] * teams

    def add(self, team: int, reward: float, *, at_the_end: bool) -> None:
        """Add an agent's reward; `at_the_end` if it came with its episode's end."""
        self._total[team] += reward
        if at_the_end:
            self._last[team] += reward

    def by(self, rule: OutcomeRule) -> list[float]:
        """[T] the scores that decide the game by a rule."""
        return self._total if rule == "return" else self._last


def check_scores(scores: Sequence[Sequence[float]], env_ids: Sequence[int], name: str) -> None:
    """Check that the scores [g, T] of games are finite.

    Rewards in rows are checked with the rows, but those of an agent that never acted count in its game alone.

    Args:
        scores: the scores of the games that ended.
        env_ids: [g] their instances.
        name: what messages call the environment.

    Raises:
        NotFiniteError: if a team's score is NaN or infinite.
    """
    finite = np.isfinite(np.asarray(scores, np.float64))
    if not finite.all():
        game, team = (int(index) for index in np.argwhere(~finite)[0])
        raise NotFiniteError(
            f"{name}: the rewards of team {team} in instance {env_ids[game]}'s game add up to "
            f"{scores[game][team]:.6g}, expected a finite number; look for a division by zero where rewards are "
            "computed"
        )


def game_outcomes(scores: Sequence[Sequence[float]], teams: int) -> NDArray[np.float32]:
    """Outcomes [g, T] of scores [g, T]: 1 for the best team, 0 for the others; equal best teams draw, 0.5 each."""
    values = np.asarray(scores, np.float64).reshape(len(scores), teams)
    best = values.max(axis=1, keepdims=True)
    top = values >= best - _TIE * np.maximum(1.0, np.abs(best))
    shared = np.count_nonzero(top, axis=1)[:, None] > 1
    return np.where(top, np.where(shared, 0.5, 1.0), 0.0).astype(np.float32)

"""Who won: from the rewards of each team to the result of a game.

Axis letters: g games, T teams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

OutcomeRule = Literal["return", "last_reward"]

_TIE = 1e-6
"""Scores that differ by less, relative to their size, are equal: sums of floats in another order are."""


class Score:
    """What the agents of each team received in the running game of one instance.

    Args:
        teams: T.
    """

    __slots__ = ("_last", "_total")

    def __init__(self, teams: int) -> None:
        self._total = [0.0] * teams
        self._last = [0.0] * teams

    def add(self, team: int, reward: float, *, at_the_end: bool) -> None:
        """Note an agent's reward; `at_the_end` if it came with its episode's end."""
        self._total[team] += reward
        if at_the_end:
            self._last[team] += reward

    def by(self, rule: OutcomeRule) -> list[float]:
        """[T] what the winner is found by."""
        return self._total if rule == "return" else self._last


def outcomes(scores: Sequence[Sequence[float]], teams: int) -> NDArray[np.float32]:
    """[g, T] of scores [g, T]: 1 for the best team, 0 for the others; best ones that are equal drew, 0.5 each."""
    values = np.asarray(scores, np.float64).reshape(len(scores), teams)
    best = values.max(axis=1, keepdims=True)
    top = values >= best - _TIE * np.maximum(1.0, np.abs(best))
    shared = np.count_nonzero(top, axis=1)[:, None] > 1
    return np.where(top, np.where(shared, 0.5, 1.0), 0.0).astype(np.float32)

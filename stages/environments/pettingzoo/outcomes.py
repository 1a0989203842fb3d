"""What teams and groups receive in a game: the results of games, and group rewards where agents act by turns.

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


class GroupRewards:
    """The rewards of the groups of one instance in its running episode, where agents act by turns.

    Where all agents act at once, the mates' rewards are in their rows of the same tick. In a turn-based game no two
    agents have a row in the same tick, so each row carries what the others received between two of its agent's turns.

    An agent's reward is final when its turn comes. Many environments give a preliminary reward of an agent that still
    waits; it counts for its mates at once, even for one that dies before that agent's turn. The final reward replaces
    the preliminary ones, so nothing counts twice.
    """

    __slots__ = ("_counted", "_final", "_groups")

    def __init__(self) -> None:
        self._groups: dict[int, float] = {}
        self._final: dict[str, float] = {}
        self._counted: dict[str, float] = {}

    def add(self, group_id: int, agent: str, reward: float, *, final: bool) -> None:
        """Add an agent's reward since its last turn.

        Args:
            group_id: the agent's group.
            agent: its name.
            reward: the sum since its last turn.
            final: True in its turn and at its end, False for a preliminary reward.
        """
        total = self._final.get(agent, 0.0) + reward
        if final:
            self._final[agent] = total
        self._groups[group_id] = self._groups.get(group_id, 0.0) + total - self._counted.get(agent, 0.0)
        self._counted[agent] = total

    def of_mates(self, group_id: int, agent: str) -> float:
        """The rewards of an agent's mates so far, including those that are gone or have yet to act."""
        return self._groups.get(group_id, 0.0) - self._counted.get(agent, 0.0)

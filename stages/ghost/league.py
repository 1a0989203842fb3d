"""The league: the matches of past assignments, and the ratings that follow from the results of games.

A game's result carries the generation of its assignment, which names the whole lineup. So each game is rated for the
policies that really played it, however late it ends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from queues.messages import Columns
from queues.specs import behavior_name, behavior_team
from stages.ghost.policy_history import NEWEST, PolicyHistory, Record
from stages.ghost.rating import SkillRating, points_lost, skill

REMEMBERED = 1000
"""Assignments whose games can still be rated; results of older ones are ignored."""


@dataclass(frozen=True, slots=True)
class Match:
    """The snapshots that play each other under one assignment."""

    learning_team: int
    players: Mapping[str, int]
    """Behaviour id → snapshot, `NEWEST` for the learning team's and for opponents that play with the newest policy."""


@dataclass(frozen=True, slots=True)
class _Side:
    """A team in one game."""

    players: tuple[tuple[PolicyHistory, int], ...]
    outcome: float

    @property
    def records(self) -> list[Record]:
        return [history.records[number] for history, number in self.players]

    @property
    def rating(self) -> float:
        """The mean rating of its members."""
        return sum(record.rating for record in self.records) / len(self.players)


class League:
    """Rates games.

    Args:
        histories: by behaviour name; may grow.
    """

    def __init__(self, histories: Mapping[str, PolicyHistory]) -> None:
        self._histories = histories
        self._matches: dict[int, Match] = {}
        self._skill = SkillRating()

    def begin(self, generation: int, match: Match) -> None:
        """Remember the match of a new assignment."""
        self._matches[generation] = match
        while len(self._matches) > REMEMBERED:
            del self._matches[next(iter(self._matches))]

    def players(self, generation: int) -> Collection[str]:
        """The behaviour ids that play under an assignment; none if it is no longer remembered."""
        match = self._matches.get(generation)
        return match.players.keys() if match is not None else ()

    def rate(self, games: Columns) -> list[tuple[str, str, float]]:
        """Rate games that have ended, each once.

        Args:
            games: `columns.GAME_COLUMNS` [G], optionally with each team's result, `game_outcomes` [G, T].

        Returns:
            (behaviour name, statistic, value) for the rating of each newest policy in each rated game.
        """
        if not games:
            return []
        statistics: list[tuple[str, str, float]] = []
        outcomes = games.get("game_outcomes")
        for i, (generation, outcome) in enumerate(zip(games["game_generation"], games["game_outcome"], strict=True)):
            match = self._matches.get(int(generation))
            if match is not None:
                statistics += self._rate(match, float(outcome), None if outcomes is None else outcomes[i])
        return statistics

    def state_dict(self) -> list[Any]:
        """The remembered matches; the histories hold the ratings."""
        return [[generation, match.learning_team, dict(match.players)] for generation, match in self._matches.items()]

    def load_state_dict(self, state: list[Any]) -> None:
        """Continue from `state_dict()`."""
        self._matches = {
            int(generation): Match(int(team), {str(i): int(number) for i, number in players.items()})
            for generation, team, players in state
        }

    def _rate(self, match: Match, outcome: float, outcomes: Any) -> list[tuple[str, str, float]]:
        sides = self._sides(match, outcome, outcomes)
        learner = sides.pop(match.learning_team)
        others = [side for side in sides.values() if len(_on_both(learner, side)) < len(side.players)]
        if not others:
            return []
        scores = [outcome] if len(sides) == 1 else [_score(learner.outcome, side.outcome) for side in others]
        k = learner.players[0][0].settings.elo_k
        points = points_lost(learner.rating, [side.rating for side in others], scores, k)
        for side, score, lost in zip(others, scores, points, strict=True):
            self._count(learner, side, score, lost)
        if len(sides) > 1:
            teams = [learner, *others]
            self._skill.rate([side.records for side in teams], [side.outcome for side in teams])
        return _statistics([learner, *others])

    def _sides(self, match: Match, outcome: float, outcomes: Any) -> dict[int, _Side]:
        members: dict[int, list[tuple[PolicyHistory, int]]] = {}
        for behavior_id, number in match.players.items():
            member = (self._histories[behavior_name(behavior_id)], number)
            members.setdefault(behavior_team(behavior_id), []).append(member)
        by_team = dict.fromkeys(members, 1.0 - outcome) | {match.learning_team: outcome}
        if outcomes is not None:
            by_team |= {team: float(outcomes[team]) for team in members if team < len(outcomes)}
        return {team: _Side(tuple(players), by_team[team]) for team, players in members.items()}

    @staticmethod
    def _count(learner: _Side, side: _Side, score: float, lost: float) -> None:
        on_both = _on_both(learner, side)
        for history, number in learner.players:
            if history.name not in on_both:
                history.records[number].rating += lost
        for met, number in side.players:
            if number == NEWEST and met.name in on_both:
                continue
            record = met.records[number]
            record.rating -= lost
            record.count(score)
            for history, _ in learner.players:
                counts = history.results.setdefault((history.newest_snapshot, met.name, number), [0, 0, 0])
                counts[0 if score > 0.5 else 2 if score < 0.5 else 1] += 1


def _statistics(sides: list[_Side]) -> list[tuple[str, str, float]]:
    statistics = []
    players = [player for side in sides for player in side.players]
    for history in dict.fromkeys(history for history, number in players if number == NEWEST):
        record = history.records[NEWEST]
        statistics.append((history.name, "Self-play/ELO", record.rating))
        known = skill(record)
        if known is not None:
            statistics.append((history.name, "Self-play/Skill", known))
    return statistics


def _on_both(learner: _Side, side: _Side) -> set[str]:
    """The behaviours whose newest policy plays for both sides: results against itself say nothing about it."""
    mine = {history.name for history, _ in learner.players}
    return {history.name for history, number in side.players if number == NEWEST and history.name in mine}


def _score(mine: float, theirs: float) -> float:
    return float(np.sign(mine - theirs) + 1) / 2


def report(history: PolicyHistory) -> dict[str, Any]:
    """The ratings and results of a behaviour's policies, as plain data for JSON.

    Returns:
        `snapshots`: each with its rating and its results as an opponent (`won`, `drawn` and `lost` are its own).
        `results`: the matrix, entry by entry: the learner's results between its snapshot `since` and the next one,
        against `snapshot` of behaviour `against`; -1 stands for the newest policy.
    """
    newest = history.records[NEWEST]
    return {
        "behavior": history.name,
        "rating": newest.rating,
        "skill": skill(newest),
        "snapshots": [
            {
                "snapshot": number,
                "step": record.step,
                "version": record.version,
                "rating": record.rating,
                "skill": skill(record),
                "games": record.games,
                "won": record.losses,
                "drawn": record.draws,
                "lost": record.wins,
            }
            for number, record in history.records.items()
            if number != NEWEST
        ],
        "results": [
            {"since": since, "against": against, "snapshot": number, "won": won, "drawn": drawn, "lost": lost}
            for (since, against, number), (won, drawn, lost) in sorted(history.results.items())
        ],
    }

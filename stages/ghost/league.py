"""The league: who met whom under which assignment, and what the results of games do to ratings.

A game's result carries the generation of the assignment that it was played under. That names the whole lineup, so each
game is rated against what really played it, however late it ends.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from queues.messages import Columns
from queues.specs import behavior_name, behavior_team
from stages.ghost.lineage import NEWEST, Lineage, Record
from stages.ghost.rating import points_lost
from stages.ghost.skill import SkillRating, skill

REMEMBERED = 1000
"""Assignments whose games can still be rated; a game that outlasts as many swaps counts for nothing."""


@dataclass(frozen=True, slots=True)
class Match:
    """Who plays whom under one assignment."""

    learning_team: int
    players: Mapping[str, int]
    """Behaviour id → snapshot, `NEWEST` for the learning team's and for opponents that play with the newest policy."""


@dataclass(frozen=True, slots=True)
class _Side:
    """A team in one game."""

    players: tuple[tuple[Lineage, int], ...]
    outcome: float

    @property
    def records(self) -> list[Record]:
        return [lineage.records[number] for lineage, number in self.players]

    @property
    def rating(self) -> float:
        """The mean of its members'."""
        return sum(record.rating for record in self.records) / len(self.players)


class League:
    """Rates games.

    Args:
        lineages: by behaviour name; may grow.
    """

    def __init__(self, lineages: Mapping[str, Lineage]) -> None:
        self._lineages = lineages
        self._matches: dict[int, Match] = {}
        self._skill = SkillRating()

    def begin(self, generation: int, match: Match) -> None:
        """Games may be played under this assignment from now on."""
        self._matches[generation] = match
        while len(self._matches) > REMEMBERED:
            del self._matches[next(iter(self._matches))]

    def players(self, generation: int) -> Collection[str]:
        """The behaviour ids that play under an assignment."""
        match = self._matches.get(generation)
        return match.players.keys() if match is not None else ()

    def rate(self, games: Columns) -> list[tuple[str, str, float]]:
        """Rate games that have ended, each once.

        Args:
            games: `columns.GAME_COLUMNS` [G]; where `game_outcomes` [G, T] are among them, they tell how each team did.

        Returns:
            Of each game that counts: (behaviour name, statistic, value) for ratings of newest policies that played.
        """
        if not games:
            return []
        told: list[tuple[str, str, float]] = []
        outcomes = games.get("game_outcomes")
        for i, (generation, outcome) in enumerate(zip(games["game_generation"], games["game_outcome"], strict=True)):
            match = self._matches.get(int(generation))
            if match is not None:
                told += self._rate(match, float(outcome), None if outcomes is None else outcomes[i])
        return told

    def state_dict(self) -> list[Any]:
        """Who met whom; ratings are the lineages'."""
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
        return self._told([learner, *others])

    def _sides(self, match: Match, outcome: float, outcomes: Any) -> dict[int, _Side]:
        members: dict[int, list[tuple[Lineage, int]]] = {}
        for behavior_id, number in match.players.items():
            member = (self._lineages[behavior_name(behavior_id)], number)
            members.setdefault(behavior_team(behavior_id), []).append(member)
        told = dict.fromkeys(members, 1.0 - outcome) | {match.learning_team: outcome}
        if outcomes is not None:
            told |= {team: float(outcomes[team]) for team in members if team < len(outcomes)}
        return {team: _Side(tuple(players), told[team]) for team, players in members.items()}

    @staticmethod
    def _count(learner: _Side, side: _Side, score: float, lost: float) -> None:
        on_both = _on_both(learner, side)
        for lineage, number in learner.players:
            if lineage.name not in on_both:
                lineage.records[number].rating += lost
        for met, number in side.players:
            if number == NEWEST and met.name in on_both:
                continue
            record = met.records[number]
            record.rating -= lost
            record.count(score)
            for lineage, _ in learner.players:
                counts = lineage.results.setdefault((lineage.age, met.name, number), [0, 0, 0])
                counts[0 if score > 0.5 else 2 if score < 0.5 else 1] += 1

    @staticmethod
    def _told(sides: list[_Side]) -> list[tuple[str, str, float]]:
        told = []
        players = [player for side in sides for player in side.players]
        for lineage in dict.fromkeys(lineage for lineage, number in players if number == NEWEST):
            record = lineage.records[NEWEST]
            told.append((lineage.name, "Self-play/ELO", record.rating))
            known = skill(record)
            if known is not None:
                told.append((lineage.name, "Self-play/Skill", known))
        return told


def _on_both(learner: _Side, side: _Side) -> set[str]:
    """The behaviours whose newest policy plays for both: what it wins against itself says nothing about it."""
    mine = {lineage.name for lineage, _ in learner.players}
    return {lineage.name for lineage, number in side.players if number == NEWEST and lineage.name in mine}


def _score(mine: float, theirs: float) -> float:
    return float(np.sign(mine - theirs) + 1) / 2


def report(lineage: Lineage) -> dict[str, Any]:
    """How a behaviour's policies have done, as plain data for JSON.

    Returns:
        `snapshots`: each with its rating, and how it did as an opponent (`won`, `drawn` and `lost` are its own).
        `results`: the matrix, entry by entry: how the learner did after it had made snapshot `since` (and before the
        next one) against `snapshot` of behaviour `against`; -1 stands for the newest policy.
    """
    newest = lineage.records[NEWEST]
    return {
        "behavior": lineage.name,
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
            for number, record in lineage.records.items()
            if number != NEWEST
        ],
        "results": [
            {"since": since, "against": against, "snapshot": number, "won": won, "drawn": drawn, "lost": lost}
            for (since, against, number), (won, drawn, lost) in sorted(lineage.results.items())
        ],
    }

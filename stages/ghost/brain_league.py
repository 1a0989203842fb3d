"""The league of brains: ratings where nobody learns, and brains play each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from headrace.config.brains import BrainSettings, brains_of_team, drawn
from headrace.queues.columns import GAME_DRAWS
from headrace.queues.messages import Columns
from headrace.queues.specs import behavior_name, behavior_team
from headrace.stages.ghost.league import results_of, score_against
from headrace.stages.ghost.policy_history import Record
from headrace.stages.ghost.rating import points_lost

Entrant = tuple[str, str]
"""A behaviour and one of its brains."""

INITIAL_ELO, ELO_K = 1200.0, 16.0
"""As by default in self-play."""


class BrainLeague:
    """Rates the brains of behaviours that do not learn, by the results of their games.

    A game is rated once, from the side of its lowest team; one of brains against themselves is not.
    """

    def __init__(self) -> None:
        self._ids: dict[str, list[BrainSettings]] = {}
        self._records: dict[Entrant, Record] = {}
        self._results: dict[tuple[Entrant, Entrant], list[int]] = {}

    def add_behavior(self, behavior_id: str, brains: Sequence[BrainSettings]) -> None:
        """Add a behaviour id, with all brains of its behaviour."""
        name = behavior_name(behavior_id)
        mine = brains_of_team(brains, behavior_team(behavior_id))
        self._ids = dict(sorted({**self._ids, behavior_id: mine}.items()))
        for brain in mine:
            self._records.setdefault((name, brain.name), Record(INITIAL_ELO))

    def rate(self, games: Columns) -> list[tuple[str, str, float]]:
        """Rate games that have ended; returns (behaviour name, statistic, value) for each who has played."""
        played: set[Entrant] = set()
        outcomes, draws = games.get("game_outcomes"), games.get(GAME_DRAWS)
        for i in range(len(games.get("game_outcome", ()))):
            sides = self._sides(() if draws is None else draws[i].tolist())
            team = int(games["game_team"][i])
            scores = dict.fromkeys(sides, 1.0 - float(games["game_outcome"][i]))
            scores[team] = float(games["game_outcome"][i])
            if outcomes is not None:
                scores |= {other: float(outcomes[i][other]) for other in sides}
            played |= self._rate(team, sides, scores, draw_or_win=outcomes is None)
        return [
            (name, f"Self-play/ELO of {brain}", self._records[name, brain].rating) for name, brain in sorted(played)
        ]

    def reports(self) -> dict[str, dict[str, Any]]:
        """The ratings and results of each behaviour's brains that have played rated games, as plain data for JSON.

        Of `results`, `since` is the place in `brains` of the one that has played, and `brain` whom it met.
        """
        return {name: self._report(name) for name in dict.fromkeys(name for (name, _), _ in self._results)}

    def state_dict(self) -> dict[str, Any]:
        """The ratings and results."""
        return {
            "records": [[*entrant, asdict(record)] for entrant, record in self._records.items()],
            "results": [[*mine, *theirs, *counts] for (mine, theirs), counts in self._results.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`."""
        self._records |= {(str(name), str(brain)): Record(**record) for name, brain, record in state["records"]}
        self._results = {((a, b), (c, d)): [int(n) for n in counts] for a, b, c, d, *counts in state["results"]}

    def _sides(self, draws: Sequence[float]) -> dict[int, list[Entrant]]:
        sides: dict[int, list[Entrant]] = {}
        for behavior_id, brains in self._ids.items():
            team = behavior_team(behavior_id)
            at = draws[team] if team < len(draws) else 0.0
            chosen = brains[drawn([brain.weight for brain in brains], max(0.0, at))]
            sides.setdefault(team, []).append((behavior_name(behavior_id), chosen.name))
        return sides

    def _rate(
        self, team: int, sides: Mapping[int, list[Entrant]], scores: Mapping[int, float], *, draw_or_win: bool
    ) -> set[Entrant]:
        """Rate one game; returns who has played in it."""
        mine = sides[team]
        others = {other: side for other, side in sides.items() if other != team and side != mine}
        if not others:
            return set()
        results = [scores[team] if draw_or_win else score_against(scores[team], scores[other]) for other in others]
        ratings = [self._rating(side) for side in others.values()]
        for side, score, lost in zip(
            others.values(), results, points_lost(self._rating(mine), ratings, results, ELO_K), strict=True
        ):
            for entrants, points, result in ((mine, lost, 1 - score), (side, -lost, score)):
                for entrant in entrants:
                    self._records[entrant].rating += points
                    self._records[entrant].count(result)
            self._count(mine, side, score)
            self._count(side, mine, 1 - score)
        return {*mine, *(entrant for side in others.values() for entrant in side)}

    def _rating(self, side: Sequence[Entrant]) -> float:
        return sum(self._records[entrant].rating for entrant in side) / len(side)

    def _count(self, mine: Sequence[Entrant], theirs: Sequence[Entrant], score: float) -> None:
        for me in mine:
            for other in theirs:
                counts = self._results.setdefault((me, other), [0, 0, 0])
                counts[0 if score > 0.5 else 2 if score < 0.5 else 1] += 1

    def _report(self, behavior: str) -> dict[str, Any]:
        mine = {brain: record for (name, brain), record in self._records.items() if name == behavior}
        places = {brain: place for place, brain in enumerate(mine)}
        return {
            "behavior": behavior,
            "rating": None,
            "skill": None,
            "snapshots": [],
            "brains": [{"brain": brain, **results_of(record)} for brain, record in mine.items()],
            "results": [
                {
                    "since": places[me],
                    "against": other[0],
                    "snapshot": None,
                    "brain": other[1],
                    "won": won,
                    "drawn": even,
                    "lost": lost,
                }
                for ((name, me), other), (won, even, lost) in sorted(self._results.items())
                if name == behavior
            ],
        }

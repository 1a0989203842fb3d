"""Rates learning policies, and brains that do not learn, by the results of their games.

There are two rating systems: Elo, and openskill's Plackett-Luce model (Weng and Lin 2011) for games between more than
two teams. openskill belongs to the optional extra `league`, and is imported when the first game between more than two
teams is rated.

`SnapshotRatings` remembers the matches of past assignments. A game's result carries the generation of its assignment,
which identifies all players, and the random draws that decide which opponents are played by brains. So each game is
rated for its actual players, no matter how late it ends. In runs without learners, brains play each other, and
`BrainLeague` rates them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.config.brains import BrainSettings, brains_of_team, drawn
from headrace.queues.columns import GAME_DRAWS
from headrace.queues.messages import Columns
from headrace.queues.specs import behavior_name, behavior_team
from headrace.stages.ghost.policy_history import NEWEST, Player, PolicyHistory, Record

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
    diagonal = -information.sum(axis=1) + 2.0 * strength / (strength + 1.0) ** 2
    centre = np.eye(len(points)) - 1.0 / len(points)
    spread = np.sqrt(np.diag(centre @ np.linalg.inv(information + np.diag(diagonal)) @ centre))
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
        new_ratings: dict[int, tuple[Record, list[Any]]] = {}
        for team, ratings in zip(teams, after, strict=True):
            for record, rating in zip(team, ratings, strict=True):
                new_ratings.setdefault(id(record), (record, []))[1].append(rating)
        for record, ratings in new_ratings.values():
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


Key = TypeVar("Key")

REMEMBERED = 1000
"""Number of assignments whose games can still be rated; results of older assignments are ignored. Each swap of
opponents makes one assignment, so games end long before theirs is forgotten; the limit bounds a long run's memory."""


@dataclass(frozen=True, slots=True)
class _Side:
    """One team in one game, with its players."""

    players: tuple[tuple[PolicyHistory, Player], ...]
    outcome: float

    @property
    def records(self) -> list[Record]:
        return [history.record_of(player) for history, player in self.players]

    @property
    def rating(self) -> float:
        """Mean rating of the team's players."""
        return sum(record.rating for record in self.records) / len(self.players)


class SnapshotRatings:
    """Rates the games of learning behaviours.

    Args:
        histories: policy histories, keyed by behaviour name; the mapping may grow.
    """

    def __init__(self, histories: Mapping[str, PolicyHistory]) -> None:
        self._histories = histories
        self._matches: dict[int, tuple[int, Mapping[str, int]]] = {}
        """Per assignment: the team that learns, and the number of the snapshot that plays for each behaviour id.

        The number is `NEWEST` for learners, and for opponents that play the newest policy.
        """
        self._skill = SkillRating()

    def begin(self, generation: int, learning_team: int, players: Mapping[str, int]) -> None:
        """Store the learning team and the snapshots of a new assignment."""
        self._matches[generation] = learning_team, players
        while len(self._matches) > REMEMBERED:
            del self._matches[next(iter(self._matches))]

    def players(self, generation: int) -> Collection[str]:
        """Return the behaviour ids that play under an assignment; empty if its match is no longer remembered."""
        return self._matches.get(generation, (-1, {}))[1].keys()

    def rate(self, games: Columns) -> list[tuple[str, str, float]]:
        """Rate finished games, each once.

        Args:
            games: `columns.GAME_COLUMNS` [G]; optionally `game_outcomes` [G, T], each team's result, and `game_draws`
                [G, T], the random draws for each team's brains.

        Returns:
            For each rated game, (behaviour name, statistic, value) for the ratings of newest policies and of brains.
        """
        if not games:
            return []
        statistics: list[tuple[str, str, float]] = []
        outcomes, draws = games.get("game_outcomes"), games.get(GAME_DRAWS)
        for i, (generation, outcome) in enumerate(zip(games["game_generation"], games["game_outcome"], strict=True)):
            match = self._matches.get(int(generation))
            if match is not None:
                teams = None if outcomes is None else outcomes[i], () if draws is None else draws[i].tolist()
                statistics += self._rate(*match, float(outcome), *teams)
        return statistics

    def state_dict(self) -> list[Any]:
        """Return the remembered matches; ratings are saved with the histories."""
        return [[generation, team, dict(players)] for generation, (team, players) in self._matches.items()]

    def load_state_dict(self, state: list[Any]) -> None:
        """Restore the state from `state_dict()`."""
        self._matches = {
            int(generation): (int(team), {str(i): int(number) for i, number in players.items()})
            for generation, team, players in state
        }

    def _rate(
        self, learning_team: int, players: Mapping[str, int], outcome: float, outcomes: Any, draws: Sequence[float]
    ) -> list[tuple[str, str, float]]:
        sides = self._sides(learning_team, players, outcome, outcomes, draws)
        learner = sides.pop(learning_team)
        others = [side for side in sides.values() if len(_on_both(learner, side)) < len(side.players)]
        if not others:
            return []
        scores = [outcome] if len(sides) == 1 else [score_against(learner.outcome, side.outcome) for side in others]
        k = learner.players[0][0].settings.elo_k
        points = points_lost(learner.rating, [side.rating for side in others], scores, k)
        for side, score, lost in zip(others, scores, points, strict=True):
            self._count(learner, side, score, lost)
        if len(sides) > 1:
            teams = [learner, *others]
            self._skill.rate([side.records for side in teams], [side.outcome for side in teams])
        return _statistics([learner, *others])

    def _sides(
        self, learning_team: int, players: Mapping[str, int], outcome: float, outcomes: Any, draws: Sequence[float]
    ) -> dict[int, _Side]:
        members: dict[int, list[tuple[PolicyHistory, Player]]] = {}
        for behavior_id, number in players.items():
            history, team = self._histories[behavior_name(behavior_id)], behavior_team(behavior_id)
            brain = _brain(history, draws[team]) if team != learning_team and team < len(draws) else None
            members.setdefault(team, []).append((history, number if brain is None else brain))
        by_team = dict.fromkeys(members, 1.0 - outcome) | {learning_team: outcome}
        if outcomes is not None:
            by_team |= {team: float(outcomes[team]) for team in members if team < len(outcomes)}
        return {team: _Side(tuple(side), by_team[team]) for team, side in members.items()}

    @staticmethod
    def _count(learner: _Side, side: _Side, score: float, lost: float) -> None:
        on_both = _on_both(learner, side)
        for history, number in learner.players:
            if history.name not in on_both:
                history.record_of(number).rating += lost
        for met, number in side.players:
            if number == NEWEST and met.name in on_both:
                continue
            record = met.record_of(number)
            record.rating -= lost
            record.count(score)
            for history, _ in learner.players:
                count_result(history.results, (history.newest_snapshot, met.name, number), score)


def count_result(results: dict[Key, list[int]], key: Key, score: float) -> None:
    """Count a game in `results[key]` as won, drawn or lost."""
    results.setdefault(key, [0, 0, 0])[0 if score > 0.5 else 2 if score < 0.5 else 1] += 1


def _brain(history: PolicyHistory, draw: float) -> str | None:
    """Return the name of the brain that a random draw selects; None if the draw selects a snapshot."""
    brains = history.settings.brains
    index = drawn([brain.weight for brain in brains], draw) if draw >= 0 else -1
    return brains[index].name if index >= 0 else None


def _statistics(sides: list[_Side]) -> list[tuple[str, str, float]]:
    players = [player for side in sides for player in side.players]
    statistics = [
        (history.name, f"Self-play/ELO of {player}", history.record_of(player).rating)
        for history, player in dict.fromkeys(players)
        if isinstance(player, str)
    ]
    for history in dict.fromkeys(history for history, number in players if number == NEWEST):
        record = history.records[NEWEST]
        statistics.append((history.name, "Self-play/ELO", record.rating))
        lower_bound = skill(record)
        if lower_bound is not None:
            statistics.append((history.name, "Self-play/Skill", lower_bound))
    return statistics


def _on_both(learner: _Side, side: _Side) -> set[str]:
    """Return the behaviours whose newest policy plays on both sides. Games of a policy against itself can't rate it."""
    mine = {history.name for history, _ in learner.players}
    return {history.name for history, number in side.players if number == NEWEST and history.name in mine}


def score_against(mine: float, theirs: float) -> float:
    """Return the score of one result against another: 1 if won, 0.5 if drawn, 0 if lost."""
    return float(np.sign(mine - theirs) + 1) / 2


def report(history: PolicyHistory) -> dict[str, Any]:
    """Return the ratings and results of a behaviour's policies, as plain data for JSON.

    Returns:
        `snapshots`: each snapshot's rating, and its results as an opponent (`won`, `drawn` and `lost` from its own
            side).
        `brains`: the same for each brain that does not learn.
        `results`: the entries of a matrix. Each entry has the learner's results between its snapshot `since` and the
            next one, against player `snapshot` of behaviour `against`. -1 stands for the newest policy, null for a
            `brain`.
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
                **results_of(record),
            }
            for number, record in history.records.items()
            if number != NEWEST
        ],
        "brains": [{"brain": name, **results_of(record)} for name, record in history.brains.items()],
        "results": [
            {"since": since, "against": against, **_met(player), "won": won, "drawn": even, "lost": lost}
            for (since, against, player), (won, even, lost) in sorted(
                history.results.items(), key=lambda entry: (*entry[0][:2], str(entry[0][2]).zfill(12))
            )
        ],
    }


def results_of(record: Record) -> dict[str, Any]:
    """Return an opponent's rating and results, from the opponent's point of view."""
    return {
        "rating": record.rating,
        "skill": skill(record),
        "games": record.games,
        "won": record.losses,
        "drawn": record.draws,
        "lost": record.wins,
    }


def _met(player: Player) -> dict[str, Any]:
    return {"snapshot": None, "brain": player} if isinstance(player, str) else {"snapshot": player}


Entrant = tuple[str, str]
"""(behaviour name, name of one of its brains)."""

INITIAL_ELO, ELO_K = 1200.0, 16.0
"""Self-play's default initial rating and K factor."""


class BrainLeague:
    """Rates the brains of behaviours that do not learn, by the results of their games.

    Each game is rated once, from the point of view of the team with the lowest id. Games that a brain plays against
    itself are not rated.
    """

    def __init__(self) -> None:
        self._ids: dict[str, list[BrainSettings]] = {}
        self._records: dict[Entrant, Record] = {}
        self._results: dict[tuple[Entrant, Entrant], list[int]] = {}

    def add_behavior(self, behavior_id: str, brains: Sequence[BrainSettings]) -> None:
        """Add a behaviour id with its brains."""
        name = behavior_name(behavior_id)
        mine = brains_of_team(brains, behavior_team(behavior_id))
        self._ids = dict(sorted({**self._ids, behavior_id: mine}.items()))
        for brain in mine:
            self._records.setdefault((name, brain.name), Record(INITIAL_ELO))

    def rate(self, games: Columns) -> list[tuple[str, str, float]]:
        """Rate finished games; return (behaviour name, statistic, value) for each brain that played."""
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
        """Return the ratings and results of each behaviour's brains that have rated games, as plain data for JSON.

        In `results`, `since` is the player's index in `brains`, and `brain` is its opponent.
        """
        return {name: self._report(name) for name in dict.fromkeys(name for (name, _), _ in self._results)}

    def state_dict(self) -> dict[str, Any]:
        """Return the ratings and results."""
        return {
            "records": [[*entrant, asdict(record)] for entrant, record in self._records.items()],
            "results": [[*mine, *theirs, *counts] for (mine, theirs), counts in self._results.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`."""
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
        """Rate one game; return the brains that played it, or no brains if the game is not rated."""
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
                count_result(self._results, (me, other), score)

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
                {"since": places[me], "against": other, **_met(brain), "won": won, "drawn": even, "lost": lost}
                for ((name, me), (other, brain)), (won, even, lost) in sorted(self._results.items())
                if name == behavior
            ],
        }

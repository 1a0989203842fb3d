"""Scores of policies that play without training: what one actor counts, and the scores summed over all actors.

A fixed number of episodes counts per behaviour and team, shared equally by all instances of all actors (`episodes`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headrace.queues.specs import behavior_name, behavior_team
from headrace.stages.environments.protocol import GameResults, StepResult
from headrace.stages.evaluation.episodes import CountedEpisodes, equal_shares

_WITHOUT_END = 2**62
"""Number of episodes that count if no limit is set."""


class EpisodeResults(NamedTuple):
    """A behaviour id's episodes and games, in the order in which they ended; plain data for messages."""

    returns: Sequence[float]
    lengths: Sequence[int]
    results: tuple[int, int, int]
    """Number of games won, drawn and lost."""


class ScoreKeeper:
    """Keeps the score of one actor's play.

    The environment declares the result of each game. If it declares none, a behaviour with self-play takes the sign of
    an episode's last reward as the result, as self-play's ratings do.

    Args:
        wanted: episodes per behaviour id over all actors; None for no limit.
        replica: number of the actor.
        replicas: number of actors.
        competes: returns True if the named behaviour has self-play.
        on_complete: called once, when all counted episodes have ended.
    """

    def __init__(
        self,
        wanted: int | None = None,
        replica: int = 0,
        replicas: int = 1,
        competes: Callable[[str], bool] = lambda name: False,
        on_complete: Callable[[], None] = lambda: None,
    ) -> None:
        self.complete = False
        """True if all counted episodes have ended."""
        self._wanted = wanted
        self._replica = replica
        self._replicas = replicas
        self._competes = competes
        self._on_complete = on_complete
        self._num_envs = 0
        self._declares = False
        self._counted: dict[str, CountedEpisodes] = {}
        self._results: dict[str, list[int]] = {}

    def begin(self, num_envs: int, result: StepResult) -> None:
        """Add the result of a reset of all instances. The instances will replay their unfinished episodes."""
        self._num_envs = num_envs
        for counted in self._counted.values():
            counted.forget({*range(num_envs)})
        self.add(result)

    def add(self, result: StepResult) -> None:
        """Add a tick's result."""
        for behavior_id in result.steps:
            if behavior_id not in self._counted:
                self._counted[behavior_id] = CountedEpisodes(self._shares())
                self._results[behavior_id] = [0, 0, 0]
        if result.games is not None:
            self._declares = True
            if len(result.games.env_ids):
                self._add_games(result.games)
        for behavior_id, counted in self._counted.items():
            counted.add(result.steps.get(behavior_id), result.lost, result.closed)
        if not self.complete and self._counted and all(map(self._is_complete, self._counted.values())):
            self.complete = True
            self._on_complete()

    def drain(self) -> dict[str, EpisodeResults]:
        """Return the episodes and games added since the last call, keyed by behaviour id."""
        drained = {}
        for behavior_id, counted in self._counted.items():
            results = self._results[behavior_id]
            if not self._declares and self._competes(behavior_name(behavior_id)):
                for reward in counted.last_rewards:
                    if not math.isnan(reward):
                        results[1 - int(np.sign(reward))] += 1
            won, drawn, lost = results
            drained[behavior_id] = EpisodeResults([*counted.returns], [*counted.lengths], (won, drawn, lost))
            for gathered in (counted.returns, counted.lengths, counted.last_rewards):
                gathered.clear()
            self._results[behavior_id] = [0, 0, 0]
        return drained

    def _shares(self) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        if self._wanted is None:
            return np.full(self._num_envs, _WITHOUT_END // self._num_envs)
        first = self._replica * self._num_envs
        return equal_shares(self._wanted, self._replicas * self._num_envs)[first : first + self._num_envs]

    def _is_complete(self, counted: CountedEpisodes) -> bool:
        """Return True once all counted episodes have ended, and all games that decide their results have ended too."""
        return counted.complete and not (self._declares and counted.unsettled.any())

    def _add_games(self, games: GameResults) -> None:
        if games.outcomes.shape[1] < 2:
            return
        for behavior_id, counted in self._counted.items():
            outcomes = games.outcomes[counted.settle(games.env_ids)]
            team = behavior_team(behavior_id)
            if team >= outcomes.shape[1]:
                continue
            lead = np.sign(outcomes[:, team] - np.delete(outcomes, team, axis=1).max(axis=1))
            for place, sign in enumerate((1, 0, -1)):
                self._results[behavior_id][place] += int(np.count_nonzero(lead == sign))


@dataclass(frozen=True, slots=True)
class Score:
    """A behaviour id's score: over its agents' episodes, and over its games if teams play each other."""

    episodes: int
    mean: float
    """Mean undiscounted return, which sums the agents' own and their group's rewards."""
    deviation: float
    """Population standard deviation of the returns."""
    lowest: float
    highest: float
    length: float
    """Mean number of decisions per agent and episode."""
    shortest: int
    longest: int
    won: int = 0
    """Number of games won."""
    drawn: int = 0
    lost: int = 0
    rating: float | None = None
    """The policy's ELO rating at the end of training with self-play; None otherwise."""
    returns: tuple[float, ...] = ()
    """Each episode's return, if the number of episodes was fixed in advance; otherwise empty."""
    lengths: tuple[int, ...] = ()

    @property
    def games(self) -> int:
        """Number of games with a result."""
        return self.won + self.drawn + self.lost


def score_of(returns: Sequence[float], lengths: Sequence[int]) -> Score:
    """Return the score of episodes with these returns and lengths, without games and without the list of returns."""
    values, steps = np.array(returns), np.array(lengths)
    spread = float(values.mean()), float(values.std()), float(values.min()), float(values.max())
    return Score(len(values), *spread, float(steps.mean()), int(steps.min()), int(steps.max()))


class ScoreSums:
    """A behaviour id's running score, stored as sums because play may last for days.

    Args:
        keep: whether to keep each episode's return too.
    """

    def __init__(self, keep: bool) -> None:
        self._keep = keep
        self._count = 0
        self._mean = self._squares = 0.0
        self._range = (math.inf, -math.inf)
        self._steps = 0
        self._shortest, self._longest = 2**62, 0
        self._returns: list[float] = []
        self._lengths: list[int] = []
        self._results = [0, 0, 0]

    def add(self, played: EpisodeResults) -> None:
        """Add an actor's episodes and games."""
        more = ScoreSums(self._keep)
        more._results = [*played.results]
        if len(played.returns):
            values = np.asarray(played.returns, np.float64)
            more._count, more._mean = len(values), float(values.mean())
            more._squares = float(values.var()) * len(values)
            more._range = float(values.min()), float(values.max())
            more._steps = sum(played.lengths)
            more._shortest, more._longest = min(played.lengths), max(played.lengths)
        if self._keep:
            more._returns, more._lengths = [*played.returns], [*played.lengths]
        self.join(more)

    def join(self, other: ScoreSums) -> None:
        """Add the episodes and games of another `ScoreSums`."""
        count = self._count + other._count
        if count:
            # Chan, Golub and LeVeque (1983), eq. 2.1: the squared deviations of two combined samples.
            gap = other._mean - self._mean
            self._squares += other._squares + gap * gap * self._count * other._count / count
            self._mean += gap * other._count / count
        self._count = count
        self._range = min(self._range[0], other._range[0]), max(self._range[1], other._range[1])
        self._steps += other._steps
        self._shortest, self._longest = min(self._shortest, other._shortest), max(self._longest, other._longest)
        self._returns += other._returns
        self._lengths += other._lengths
        self._results = [a + b for a, b in zip(self._results, other._results, strict=True)]

    def score(self, rating: float | None) -> Score | None:
        """Return the score, or None if no episode has been counted."""
        if not self._count:
            return None
        won, drawn, lost = self._results
        return Score(
            self._count,
            self._mean,
            math.sqrt(self._squares / self._count),
            *self._range,
            self._steps / self._count,
            self._shortest,
            self._longest,
            won,
            drawn,
            lost,
            rating,
            tuple(self._returns),
            tuple(self._lengths),
        )


def score_table(scores: Mapping[str, Score]) -> str:
    """Return scores as a text table with one line per behaviour id."""
    games = any(score.games for score in scores.values())
    rated = any(score.rating is not None for score in scores.values())
    heading = ["behaviour", "episodes", "mean return ± SD", "min", "max", "length (min to max)"]
    heading += ["won", "drawn", "lost"] * games + ["ELO"] * rated
    rows = [heading]
    for behavior_id, score in scores.items():
        row = [behavior_id, str(score.episodes), f"{score.mean:.3f} ± {score.deviation:.3f}"]
        row += [f"{score.lowest:.3f}", f"{score.highest:.3f}"]
        row += [f"{score.length:.1f} ({score.shortest} to {score.longest})"]
        if games:
            results = (score.won, score.drawn, score.lost)
            row += [f"{n} ({100 * n / score.games:.0f} %)" if score.games else "" for n in results]
        if rated:
            row += ["" if score.rating is None else f"{score.rating:.0f}"]
        rows.append(row)
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of equal length as lines with aligned columns; the first column is left-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(others, widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)

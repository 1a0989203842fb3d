"""A tournament in which each entrant plays every other entrant, on both sides, in one group of environments.

As with episodes, whether a game counts is decided at its start: the first games of each instance count.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.queues.specs import BehaviorSpec, behavior_team
from headrace.stages.environments.protocol import EnvironmentGroup, StepResult, play
from headrace.stages.errors import StageError
from headrace.stages.evaluation.opponents import Player, made_on_demand
from headrace.stages.evaluation.scores import equal_shares

MakePlayer = Callable[[int, BehaviorSpec, Sequence[int]], Player]
"""Function that makes an entrant's player for a behaviour id, given the entrant's number, the spec, and numbers for the
seed, which differ between all players of a tournament."""


@dataclass(frozen=True, slots=True)
class PairResult:
    """The results of two entrants' games in which `first` was on the lower team."""

    first: int
    second: int
    won: int
    """Games that `first` won."""
    drawn: int
    lost: int


async def play_pairs(
    group: EnvironmentGroup,
    entrants: int,
    games: int,
    make: MakePlayer,
    reset: Callable[[], Awaitable[StepResult]],
    stop: asyncio.Event,
) -> AsyncIterator[PairResult]:
    """Play games between every pair of entrants; yield each pair's result with either entrant on the lower team.

    Args:
        group: the environments, with two teams and declared results of games.
        entrants: number of entrants.
        games: games per pair; in half of them, and in any odd one, the earlier entrant is on the lower team.
        make: makes the players.
        reset: resets the group; called for each pair and side, so all pairs can play from the same starts.
        stop: if set, the tournament ends after the current tick.

    Raises:
        StageError: if the environment ends games without declaring a winner or a draw.
    """
    for first, second in itertools.combinations(range(entrants), 2):
        for pair, share in zip(((first, second), (second, first)), equal_shares(games, 2), strict=True):
            if share and not stop.is_set():
                won, drawn, lost = await _play_side(group, pair, int(share), make, await reset(), stop)
                yield PairResult(*pair, won, drawn, lost)


def check_teams(group: EnvironmentGroup) -> None:
    """Check that environments have two teams, after a reset.

    Raises:
        StageError: if they do not.
    """
    ids = sorted(group.behavior_specs)
    if len({behavior_team(behavior_id) for behavior_id in ids}) != 2:
        raise StageError(f"a tournament needs two teams, but the environment has {', '.join(ids) or 'none'}")


async def _play_side(
    group: EnvironmentGroup,
    pair: tuple[int, int],
    games: int,
    make: MakePlayer,
    start: StepResult,
    stop: asyncio.Event,
) -> list[int]:
    """Play games; return how many the pair's first entrant, which is on the lower team, won, drew and lost."""
    specs = group.behavior_specs
    lower = min(map(behavior_team, specs))
    counted = CountedGames(equal_shares(games, group.num_envs))

    def make_player(behavior_id: str) -> Player:
        entrant = pair[behavior_team(behavior_id) != lower]
        return make(entrant, specs[behavior_id], (*pair, entrant))

    async for result in play(group, made_on_demand(make_player), start):
        counted.add(result, lower)
        if counted.complete or stop.is_set():
            break
    return counted.results


class CountedGames:
    """Counts the results of each instance's first games.

    A game that is cut short, for example by a time limit, counts as drawn.

    Args:
        shares: [instances] the number of games to count in each instance.
    """

    def __init__(self, shares: NDArray[np.int64]) -> None:
        self.results = [0, 0, 0]
        """Number of games that the lower team won, drew and lost."""
        self._left = shares.copy()
        self._playing = np.zeros(len(shares), np.int64)
        """[instances] number of agents that decided at the last tick."""

    @property
    def complete(self) -> bool:
        """True if all counted games have ended."""
        return not self._left.any()

    def add(self, result: StepResult, lower: int) -> None:
        """Add a tick's result; `lower` is the lower team.

        Raises:
            StageError: if a game ended without a result.
        """
        declared = np.zeros(len(self._left), np.bool_)
        if result.games is not None:
            for env_id, outcomes in zip(result.games.env_ids.tolist(), result.games.outcomes, strict=True):
                declared[env_id] = True
                others = np.delete(outcomes, lower)
                self._count(env_id, 1 - int(np.sign(outcomes[lower] - others.max())))
        ended, cut, playing = (np.zeros(len(self._left), np.int64) for _ in range(3))
        for steps in result.steps.values():
            over = steps.env_ids[: steps.ended]
            ended += np.bincount(over, minlength=len(ended))
            cut += np.bincount(over[steps.truncated & ~steps.terminated], minlength=len(ended))
            playing += np.bincount(steps.env_ids[steps.ended :], minlength=len(ended))
        gone = (ended > 0) & (ended == self._playing) & ~declared
        if (gone & (cut < ended)).any():
            raise StageError(
                "the environment does not report who won its games: expected GameResults, as built-in and "
                "PettingZoo games provide"
            )
        for env_id in np.flatnonzero(gone):
            self._count(int(env_id), 1)
        self._playing = playing

    def _count(self, env_id: int, outcome: int) -> None:
        if self._left[env_id]:
            self._left[env_id] -= 1
            self.results[outcome] += 1


def matrix(results: Sequence[PairResult], entrants: int) -> NDArray[np.int64]:
    """Return [P, P, 3] for P entrants: how many games the row's entrant won, drew and lost against the column's."""
    counts = np.zeros((entrants, entrants, 3), np.int64)
    for pair in results:
        counts[pair.first, pair.second] += (pair.won, pair.drawn, pair.lost)
        counts[pair.second, pair.first] += (pair.lost, pair.drawn, pair.won)
    return counts


def single_games(results: Sequence[PairResult]) -> Iterator[tuple[int, int, float]]:
    """Yield (first entrant, second entrant, first entrant's points) for each game."""
    for pair in results:
        for count, points in ((pair.won, 1.0), (pair.drawn, 0.5), (pair.lost, 0.0)):
            yield from itertools.repeat((pair.first, pair.second, points), count)

"""A tournament: all pairs, both sides, an equal share of the games for each instance."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from headrace.queues.messages import ActionBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.environments.protocol import AgentSteps, GameResults, StepResult
from headrace.stages.errors import StageError
from headrace.stages.evaluation.tournament import (
    PairResult,
    check_teams,
    matrix,
    play_pairs,
    single_games,
)


class Duel:
    """Two agents in each instance choose a number, and the higher one wins; instance i plays i + 1 ticks."""

    def __init__(self, num_envs=2, teams=2, declares=True, truncates=False):
        self.num_envs = num_envs
        spec = (ObservationSpec("nothing", (1,), "float32"),), ActionSpec(0, (10,), False)
        self.behavior_specs = {f"Duel?team={team}": BehaviorSpec(f"Duel?team={team}", *spec) for team in range(teams)}
        self.seeds = []
        self._declares, self._truncates = declares, truncates

    def reset(self, seed=None):
        self.seeds.append(seed)
        self._ticks = np.zeros(self.num_envs, np.int64)
        return self._result(np.zeros(self.num_envs, np.bool_), None)

    def step(self, actions):
        self._ticks += 1
        over = self._ticks > np.arange(self.num_envs)
        lead = np.sign(actions["Duel?team=0"].discrete[:, 0] - actions["Duel?team=1"].discrete[:, 0])[over]
        outcomes = np.stack([(1 + lead) / 2, (1 - lead) / 2], 1).astype(np.float32)
        self._ticks[over] = 0
        return self._result(over, GameResults(np.flatnonzero(over).astype(np.int32), outcomes))

    def close(self):
        return None

    def _result(self, over, games):
        ended = np.flatnonzero(over)
        ids = np.concatenate([ended, np.arange(self.num_envs)])
        cut = np.full(len(ended), self._truncates)
        steps = AgentSteps(
            ids,
            ids.astype(np.int32),
            np.zeros(len(ids), np.int64),
            (np.zeros((len(ids), 1), np.float32),),
            np.zeros(len(ids), np.float32),
            len(ended),
            ~cut,
            cut,
        )
        return StepResult(dict.fromkeys(self.behavior_specs, steps), games if self._declares else None)


def always(number):
    def player(steps):
        count = len(steps.agent_ids) - steps.ended
        return ActionBatch(np.zeros((count, 0), np.float32), np.full((count, 1), number, np.int32))

    return player


async def played(group, strengths, games, stop=None, seeds=None):
    """All results, where entrant i always chooses `strengths[i]`."""

    def make(entrant, spec, seed):
        if seeds is not None:
            seeds.append((spec.behavior_id, tuple(seed)))
        return always(strengths[entrant])

    async def reset():
        return group.reset(7)

    check_teams(group)
    return [each async for each in play_pairs(group, len(strengths), games, make, reset, stop or asyncio.Event())]


async def test_all_play_all_on_both_sides_from_the_same_starts():
    group = Duel()
    seeds: list[tuple[str, tuple[int, ...]]] = []
    results = await played(group, (1, 5, 5), 5, seeds=seeds)
    assert results == [
        PairResult(0, 1, 0, 0, 3),
        PairResult(1, 0, 2, 0, 0),
        PairResult(0, 2, 0, 0, 3),
        PairResult(2, 0, 2, 0, 0),
        PairResult(1, 2, 0, 3, 0),
        PairResult(2, 1, 0, 2, 0),
    ]
    assert group.seeds == [7] * 6
    assert len({*seeds}) == 12, "each draws other random numbers"
    counts = matrix(results, 3)
    assert counts[0, 1].tolist() == [0, 0, 5]
    assert counts[1, 2].tolist() == counts[2, 1].tolist() == [0, 5, 0]
    assert sum(points for _, _, points in single_games(results)) == sum(each.won + each.drawn / 2 for each in results)


async def test_a_stopped_tournament_returns_the_games_played():
    stop = asyncio.Event()
    stop.set()
    assert await played(Duel(), (1, 2), 4, stop) == []


@pytest.mark.parametrize("teams", [1, 3])
async def test_two_teams_are_needed(teams):
    with pytest.raises(StageError, match="needs two teams, but the environment has Duel"):
        await played(Duel(teams=teams), (1, 2), 4)


async def test_games_that_end_without_a_result_are_refused_not_waited_for():
    with pytest.raises(StageError, match="does not report who won"):
        await played(Duel(declares=False), (1, 2), 4)


async def test_a_game_that_is_cut_short_is_drawn():
    results = await played(Duel(declares=False, truncates=True), (1, 2), 4)
    assert results == [PairResult(0, 1, 0, 2, 0), PairResult(1, 0, 0, 2, 0)]

"""Players of both sides, and how games between them are counted."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import FakePolicy

from benchmarks.matches import RandomPlayer, play_pursuit
from headrace.queues.messages import ActionBatch
from headrace.stages.games.policy_player import PolicyPlayer
from headrace.stages.games.pursuit import ACTIONS, DIRECTIONS, Arenas, ScriptedEvader, ScriptedPursuer, observe
from headrace.stages.policy.protocol import Decision

GAMES = 200


def heading(player, side, *places):
    """The direction that a side's first agent takes in an arena with everybody at rest."""
    arenas = Arenas.empty(1)
    arenas.places[0] = places
    batch = player.act((observe(arenas, np.ones(1, np.float32))[side],))
    return DIRECTIONS[batch.discrete[0, 0]]


def test_the_nearer_pursuer_runs_at_the_evader():
    np.testing.assert_allclose(heading(ScriptedPursuer(), 0, (-0.5, 0), (0.9, 0.9), (0.2, 0)), [1, 0], atol=1e-6)
    np.testing.assert_allclose(heading(ScriptedPursuer(), 0, (0, 0.5), (0.9, 0.9), (0, 0)), [0, -1], atol=1e-6)


def test_the_evader_runs_away_from_a_pursuer():
    x, _ = heading(ScriptedEvader(), 1, (0.3, 0), (0.5, 0), (0, 0))
    assert x < 0


def test_a_cornered_evader_does_not_stay():
    assert heading(ScriptedEvader(), 1, (0.7, 0.95), (0.2, 0.95), (1, 1)).any()


def test_scripted_pursuers_catch_random_evaders():
    assert play_pursuit(ScriptedPursuer(), RandomPlayer(ACTIONS, 0), GAMES, seed=1).win_rate > 0.95


@pytest.mark.lengthy
def test_the_scripted_evader_escapes_random_pursuers():
    assert play_pursuit(RandomPlayer(ACTIONS, 0), ScriptedEvader(), GAMES, seed=1).win_rate < 0.05


@pytest.mark.lengthy
def test_scripted_players_are_about_equal():
    assert 0.3 < play_pursuit(ScriptedPursuer(), ScriptedEvader(), GAMES, seed=1).win_rate < 0.7


def test_the_same_seed_plays_the_same_games():
    tallies = [play_pursuit(RandomPlayer(ACTIONS, 3), RandomPlayer(ACTIONS, 4), 40, seed) for seed in (1, 1)]

    assert tallies[0] == tallies[1]
    assert sum(tallies[0]) == 40


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_policy_becomes_a_player(deterministic):
    class North(FakePolicy):
        def act(self, observations, masks, random, deterministic=False, recall=None):
            self.asked = deterministic
            count = len(observations[0])
            return Decision(ActionBatch(np.zeros((count, 0), np.float32), np.full((count, 1), 3, np.int32)), {})

    policy = North()
    player = PolicyPlayer(policy, ACTIONS, 0, deterministic)

    assert player((np.zeros((2, 13), np.float32),)).discrete.tolist() == [[3], [3]]
    assert policy.asked is deterministic

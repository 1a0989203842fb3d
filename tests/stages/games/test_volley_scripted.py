import numpy as np
import pytest
from fakes import FakePolicy

from benchmarks.matches import RandomPlayer, Tally, play_volley
from headrace.queues.messages import ActionBatch
from headrace.stages.games.policy_player import PolicyPlayer
from headrace.stages.games.volley import ACTIONS, ScriptedPlayer
from headrace.stages.policy.protocol import Decision, Recall

GAMES = 1000
MANY = 300
"""Enough where one side is far better."""


@pytest.mark.lengthy
def test_the_scripted_player_beats_random_play_in_95_of_100_games():
    tally = play_volley(ScriptedPlayer(), RandomPlayer(ACTIONS, 1), MANY, seed=2)

    assert sum(tally) == MANY
    assert tally.win_rate >= 0.95


@pytest.mark.lengthy
def test_the_scripted_player_is_its_own_equal():
    tally = play_volley(ScriptedPlayer(), ScriptedPlayer(), GAMES, seed=4)

    assert abs(tally.score - 0.5) <= 0.05
    assert tally.draws < 0.1 * GAMES


@pytest.mark.lengthy
def test_results_are_reported_from_the_first_players_side():
    stronger_second = play_volley(RandomPlayer(ACTIONS, 1), ScriptedPlayer(), 101, seed=5)

    assert sum(stronger_second) == 101
    assert stronger_second.losses > 90


def test_games_without_a_point_at_the_time_limit_are_draws():
    tally = play_volley(ScriptedPlayer(), ScriptedPlayer(), 10, seed=7, time_limit_s=0.2)

    assert tally == Tally(wins=0, draws=10, losses=0)
    assert (tally.win_rate, tally.score) == (0.0, 0.5)


def test_a_policy_with_memory_remembers_by_row_until_it_has_to_forget():
    class Counting(FakePolicy):
        """Says how often each row has decided."""

        memory_size, previous_action_size = 1, 5

        def act(self, observations, masks, random, deterministic=False, recall=None):
            counts = recall.memories.astype(np.int32)
            actions = ActionBatch(np.zeros((len(counts), 0), np.float32), counts)
            return Decision(actions, {}, Recall(recall.memories + 1, recall.previous_actions))

    player = PolicyPlayer(Counting(), ACTIONS, seed=0)
    seen = (np.zeros((3, 12), np.float32),)
    assert [player(seen).discrete[:, 0].tolist() for _ in range(3)] == [[0] * 3, [1] * 3, [2] * 3]
    player.forget(np.array([1]))
    assert player(seen).discrete[:, 0].tolist() == [3, 0, 3]

"""The yardsticks, and how games between players are counted."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import FakePolicy

from benchmarks.matches import play_connect_four
from headrace.queues.messages import ActionBatch
from headrace.stages.games import connect_four
from headrace.stages.games.connect_four import ACTIONS, RandomPlayer, TacticalPlayer
from headrace.stages.games.policy_player import PolicyPlayer
from headrace.stages.policy.protocol import Decision


def seen(*lines):
    """A board as a player sees it: x its own stones, o the other's."""
    board = np.array([[[sign == "x", sign == "o"] for sign in line] for line in lines], np.int8)
    return board.reshape(1, 84)


def choices(player, board, times=40):
    heights = connect_four.from_planes(board)[2]
    return {int(player((board,), connect_four.free(heights)).discrete[0, 0]) for _ in range(times)}


EMPTY = ("       ",) * 4


def test_it_wins_where_it_can():
    assert choices(TacticalPlayer(0), seen(*EMPTY, "ooo    ", "xxx o o")) == {3}


def test_it_wins_rather_than_hindering_the_other():
    assert choices(TacticalPlayer(0), seen(*EMPTY[:1], "       ", "x     o", "x     o", "x     o", "oo    x")) == {0}


def test_else_it_hinders_the_other():
    assert choices(TacticalPlayer(0), seen(*EMPTY, "       ", "ooo  x ")) == {3}


def test_else_it_moves_anywhere_that_is_free():
    board = seen(*(("x      ", "o      ") * 3))
    assert choices(TacticalPlayer(0), board, 200) == {1, 2, 3, 4, 5, 6}


def test_random_play_is_by_the_masks():
    masks = np.array([[True, False, True, False, False, False, False]])
    player = RandomPlayer(0)
    assert {int(player((), masks).discrete[0, 0]) for _ in range(50)} == {0, 2}


def test_the_same_seed_plays_the_same():
    assert play_connect_four(TacticalPlayer(1), RandomPlayer(2), 50) == play_connect_four(
        TacticalPlayer(1), RandomPlayer(2), 50
    )


def test_looking_one_move_ahead_beats_random_play():
    tally = play_connect_four(TacticalPlayer(0), RandomPlayer(1), 200)

    assert sum(tally) == 200
    assert tally.win_rate > 0.85


def test_either_player_begins_half_of_the_games():
    class Counter(RandomPlayer):
        def __init__(self, seed):
            super().__init__(seed)
            self.began = 0

        def __call__(self, observations, masks):
            self.began += int((observations[0].sum(axis=1) == 0).sum()) if not self.began else 0
            return super().__call__(observations, masks)

    one, other = Counter(0), Counter(1)
    play_connect_four(one, other, 11)
    assert (one.began, other.began) == (6, 5)


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_policy_becomes_a_player(deterministic):
    class Leftmost(FakePolicy):
        def act(self, observations, masks, random, deterministic=False, recall=None):
            self.asked = deterministic
            chosen = masks.argmax(axis=1).astype(np.int32)[:, None]
            return Decision(ActionBatch(np.zeros((len(masks), 0), np.float32), chosen), {})

    policy = Leftmost()
    player = PolicyPlayer(policy, ACTIONS, 0, deterministic)
    masks = np.array([[False, True, True, True, True, True, True]])

    assert player((np.zeros((1, 84), np.int8),), masks).discrete.tolist() == [[1]]
    assert policy.asked is deterministic

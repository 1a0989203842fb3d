"""The yardsticks, and how games between players are counted."""

from __future__ import annotations

import numpy as np

from benchmarks.matches import play_connect_four
from headrace.stages.games import connect_four
from headrace.stages.games.connect_four import RandomPlayer, TacticalPlayer


def seen(*lines):
    """A board as a player sees it: x its own stones, o the other's."""
    board = np.array([[[sign == "x", sign == "o"] for sign in line] for line in lines], np.int8)
    return board.reshape(1, 84)


def choices(player, board, times=40):
    heights = connect_four.from_planes(board)[2]
    return {int(player((board,), connect_four.free(heights)).discrete[0, 0]) for _ in range(times)}


EMPTY = ("       ",) * 4


def test_the_tactical_player_wins_if_it_can():
    assert choices(TacticalPlayer(0), seen(*EMPTY, "ooo    ", "xxx o o")) == {3}


def test_the_tactical_player_prefers_winning_to_blocking():
    assert choices(TacticalPlayer(0), seen(*EMPTY[:1], "       ", "x     o", "x     o", "x     o", "oo    x")) == {0}


def test_the_tactical_player_blocks():
    assert choices(TacticalPlayer(0), seen(*EMPTY, "       ", "ooo  x ")) == {3}


def test_the_tactical_player_otherwise_moves_at_random():
    board = seen(*(("x      ", "o      ") * 3))
    assert choices(TacticalPlayer(0), board, 200) == {1, 2, 3, 4, 5, 6}


def test_random_play_obeys_the_masks():
    masks = np.array([[True, False, True, False, False, False, False]])
    player = RandomPlayer(0)
    assert {int(player((), masks).discrete[0, 0]) for _ in range(50)} == {0, 2}


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

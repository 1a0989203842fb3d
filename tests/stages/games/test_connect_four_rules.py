"""The rules, against a board that is looked at place by place."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from headrace.stages.games import connect_four


def stones(*lines):
    """One player's stones of a drawing, the top line first; x marks them."""
    assert len(lines) == connect_four.ROWS
    bits = sum(
        1 << (7 * column + connect_four.ROWS - 1 - row)
        for row, line in enumerate(lines)
        for column, sign in enumerate(line)
        if sign == "x"
    )
    return np.array([bits], np.uint64)


DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1))
STARTS = [(row, column, down, right) for row in range(6) for column in range(7) for down, right in DIRECTIONS]
FOURS = np.array([
    [7 * (row + n * down) + column + n * right for n in range(4)]
    for row, column, down, right in STARTS
    if row + 3 * down < 6 and 0 <= column + 3 * right < 7
])  # fmt: skip
"""The places of each four in a row, as indices into a board [6, 7] that is flat."""


def won_slowly(board, player):
    """Whether a player has four in a row on a board [6, 7], looked at place by place."""
    return bool((board.ravel()[FOURS] == player).all(axis=1).any())


@pytest.mark.parametrize(
    ("lines", "won"),
    [
        (("       ", "       ", "       ", "       ", "       ", "xxxx   "), True),
        (("       ", "       ", "      x", "      x", "      x", "      x"), True),
        (("   x   ", "    x  ", "     x ", "      x", "       ", "       "), True),
        (("      x", "     x ", "    x  ", "   x   ", "       ", "       "), True),
        # The top of a column and the foot of the next are no neighbours.
        (("x      ", "x      ", "       ", "       ", " x     ", " x     "), False),
        (("       ", "       ", "x      ", "x      ", "x      ", " x     "), False),
    ],
)
def test_four_in_a_row_in_any_direction_win(lines, won):
    assert connect_four.four_in_a_row(stones(*lines)).tolist() == [won]


@pytest.mark.lengthy
@examples(25)
@given(st.integers(0, 2**32 - 1))
def test_random_games_equal_a_slow_board(seed):
    random = np.random.default_rng(seed)
    board = np.zeros((6, 7), int)
    sides, heights = np.zeros((2, 1), np.uint64), np.zeros((1, 7), np.int8)
    for move in range(42):
        free = np.flatnonzero(board[0] == 0)
        np.testing.assert_array_equal(np.flatnonzero(connect_four.free(heights)[0]), free)
        mover = move % 2
        for side in (0, 1):
            winning = []
            for column in free:
                then = board.copy()
                then[np.flatnonzero(then[:, column] == 0)[-1], column] = side + 1
                if won_slowly(then, side + 1):
                    winning.append(column)
            assert np.flatnonzero(connect_four.winning_columns(sides[side], heights)[0]).tolist() == winning
        column = random.choice(free)
        board[np.flatnonzero(board[:, column] == 0)[-1], column] = mover + 1
        sides[mover] |= connect_four.drop(np.array([column]), heights)
        heights[0, column] += 1
        planes = connect_four.to_planes(sides[mover], sides[1 - mover])
        expected = np.stack([board == mover + 1, board == 2 - mover], axis=2)
        np.testing.assert_array_equal(planes.reshape(6, 7, 2), expected)
        own, other, high = connect_four.from_planes(planes)
        assert (own[0], other[0]) == (sides[mover, 0], sides[1 - mover, 0])
        np.testing.assert_array_equal(high, heights)
        won = won_slowly(board, mover + 1)
        assert connect_four.four_in_a_row(sides[mover]).tolist() == [won]
        if won:
            return

"""The rules of Connect Four, on many boards simultaneously: a player's stones on a board are the bits of one integer.

Each column has seven bits, from the bottom up. The seventh bit always stays empty, so no row of four extends past the
end of a column. (This is the usual layout of Connect Four programs: a shift and an "and" test all cells together.) This
module knows nothing about episodes, teams or rewards.

Axis letters: C boards.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Stones = NDArray[np.uint64]
"""[C] one player's stones on each board."""

ROWS: Final = 6
COLUMNS: Final = 7
PLACES: Final = ROWS * COLUMNS

_STRIDE: Final = ROWS + 1
_DIRECTIONS: Final = tuple(np.uint64(step) for step in (1, _STRIDE, _STRIDE - 1, _STRIDE + 1))
"""Bit offsets of the four directions: up, sideways, and the two diagonals."""
_TWO: Final = np.uint64(2)
_ONE: Final = np.uint64(1)
_BOTTOM: Final = np.arange(COLUMNS, dtype=np.uint64) * np.uint64(_STRIDE)
"""[7] bit index of each column's bottom cell."""
_BIT_OF_PLACE: Final = np.array(
    [_STRIDE * column + row for row in reversed(range(ROWS)) for column in range(COLUMNS)], np.uint64
)
"""[42] bit indices of all cells in reading order: row by row from the top, each row from the left."""


def four_in_a_row(stones: Stones) -> NDArray[np.bool_]:
    """Return True for each element of `stones`, an array of any shape, that contains four in a row."""
    won = np.zeros(stones.shape, np.bool_)
    for step in _DIRECTIONS:
        pairs = stones & (stones >> step)
        won |= (pairs & (pairs >> (_TWO * step))) != 0
    return won


def drop(columns: NDArray[np.signedinteger], heights: NDArray[np.int8]) -> Stones:
    """Return [C] the stone that falls into column `columns` [C] on boards with `heights` [C, 7]."""
    stones: Stones = drops(heights)[np.arange(len(columns)), columns]
    return stones


def drops(heights: NDArray[np.int8]) -> Stones:
    """Return [C, 7] the stone that falls into each column. The value for a full column is meaningless."""
    return _ONE << (_BOTTOM + heights.astype(np.uint64))


def free(heights: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Return [C, 7] True for columns that are not full."""
    return heights < ROWS


def winning_columns(stones: Stones, heights: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Return [C, 7] True for columns in which one more stone wins immediately for the owner of `stones` [C]."""
    return four_in_a_row(stones[:, None] | drops(heights)) & free(heights)


def to_planes(own: Stones, other: Stones) -> NDArray[np.int8]:
    """Return a player's observation [C, 84], PettingZoo's [6, 7, 2] flattened: own stones and the other player's."""
    stones = np.stack([own, other], axis=1)[:, None, :]
    bits = (stones >> _BIT_OF_PLACE[:, None]) & _ONE
    return bits.astype(np.int8).reshape(len(own), 2 * PLACES)


def from_planes(planes: NDArray[np.int8]) -> tuple[Stones, Stones, NDArray[np.int8]]:
    """Invert `to_planes`: return own stones [C], the other player's stones [C], and the columns' heights [C, 7]."""
    places = planes.reshape(-1, PLACES, 2).astype(np.uint64)
    own, other = np.bitwise_or.reduce(places << _BIT_OF_PLACE[:, None], axis=1).T
    heights = places.reshape(-1, ROWS, COLUMNS, 2).sum(axis=(1, 3)).astype(np.int8)
    return own, other, heights

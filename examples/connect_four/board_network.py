"""A network for Connect Four that looks at each column's next place, with the same weights for all columns.

A perceptron must learn each of the board's 69 lines of four, and the right response to it, separately. This network
looks at the neighbourhood of the place where a column's next stone would land, 3 places in each direction, which
contains all lines through that place. All places share the weights, so a threat learned in one corner is recognised in
every corner. `config.yaml` next to this file names the network as `board_network:BoardNetwork`. See docs/extending.md,
"A network".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace import NetworkSettings, ObservationSpec

ROWS, COLUMNS, REACH = 6, 7, 3
SIDE = 2 * REACH + 1
WIDE, HIGH = COLUMNS + 2 * REACH, ROWS + 1 + 2 * REACH
"""Size of the board with margins, which are large enough for the neighbourhoods of all places, including those above
full columns."""
PLANES = 3
"""Planes of a place: own stones, the other player's stones, and places off the board."""


class BoardNetwork(nn.Module):
    """Features of each column's next place, and a hidden layer over these features and the whole board.

    Args:
        observations: one observation, the board as in PettingZoo: 6 rows from the top, 7 columns, own and other stones.
        settings: `hidden_units` is the width of both hidden layers; a column has a quarter as many features.
    """

    off_board: Tensor
    """[1, 13, 13, 1] mask that is 1 in the margins."""
    corners: Tensor
    around: Tensor

    def __init__(self, observations: tuple[ObservationSpec, ...], settings: NetworkSettings) -> None:
        super().__init__()
        (board,) = observations
        if board.size != ROWS * COLUMNS * 2:
            raise ValueError(f"{board.name} has {board.size} numbers; expected the 84 of connect four")
        width, features = settings.widths[0], settings.widths[0] // 4
        self.look = nn.Linear(SIDE * SIDE * PLANES, width)
        self.judge = nn.Linear(width, features)
        self.overall = nn.Linear(COLUMNS * features + board.size, width)
        self.encoding_size = COLUMNS * features + width
        """Width of the encoding."""
        off = torch.ones(1, HIGH, WIDE, 1)
        off[:, REACH + 1 : -REACH, REACH:-REACH] = 0
        self.register_buffer("off_board", off, persistent=False)
        self.register_buffer("corners", corners(), persistent=False)
        self.register_buffer("around", neighbourhood(), persistent=False)

    def forward(self, observations: tuple[Tensor, ...]) -> Tensor:
        """Encode B boards, given as one float tensor [B, …] of 84 numbers each; return [B, encoding_size]."""
        stones = observations[0].reshape(-1, ROWS, COLUMNS, 2)
        seen = torch.relu(self.look(self.around_next_places(stones)))
        columns = torch.relu(self.judge(seen)).flatten(1)
        overall = torch.relu(self.overall(torch.cat([columns, stones.flatten(1)], dim=1)))
        return torch.cat([columns, overall], dim=1)

    def around_next_places(self, stones: Tensor) -> Tensor:
        """Return the neighbourhoods of the places where the next stones would land.

        Args:
            stones: [B, 6, 7, 2] own stones, and the other player's.

        Returns:
            [B, 7, 147] by column, the square around its next place, row by row: own, other, off the board.
        """
        board = nn.functional.pad(stones, (0, 0, REACH, REACH, REACH + 1, REACH))
        board = torch.cat([board, self.off_board.expand(stones.shape[0], -1, -1, -1)], dim=3).flatten(1, 2)
        heights = stones.sum(dim=(1, 3)).clamp(0, ROWS).long()  # exports are traced with random numbers
        places = (self.corners[heights, torch.arange(COLUMNS)].unsqueeze(2) + self.around).flatten(1)
        picked = board.gather(1, places.unsqueeze(2).expand(-1, -1, PLANES))
        return picked.reshape(-1, COLUMNS, SIDE * SIDE * PLANES)


def corners() -> Tensor:
    """Return [7, 7], by a column's height and the column: the upper left corner of the square around its next place.

    Places are counted row by row on the board with margins, which has one more row above a full column.
    """
    heights, columns = torch.arange(ROWS + 1), torch.arange(COLUMNS)
    return (ROWS - heights).unsqueeze(1) * WIDE + columns


def neighbourhood() -> Tensor:
    """Return [49] the places of a square of 7 × 7, counted from its upper left corner."""
    side = torch.arange(SIDE)
    return (side.unsqueeze(1) * WIDE + side).flatten()

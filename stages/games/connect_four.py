"""Connect Four on hundreds of boards simultaneously, with PettingZoo's moves and observations (docs/pettingzoo.md).

The rules come first. A player's stones on a board are the bits of one integer. Each column has seven bits, from the
bottom up. The seventh bit always stays empty, so no row of four extends past the end of a column. (This is the usual
layout of Connect Four programs: a shift and an "and" test all cells together.)

In the environment group, a tick is one move on every board. A game is an episode for both teams: the winner's reward is
1, the loser's -1, and both get 0 if the board is full. The teams take turns at moving first: in game e of board i,
team 0 moves first if i + e is even, otherwise team 1. Games may begin with random moves, which do not count as
decisions. Observations, actions and masks are those of PettingZoo's `classic/connect_four-v3`, so policies can be moved
between the two; this implementation is about fifty times as fast.

The scripted players are baselines: one moves at random, one looks one move ahead.

Axis letters: C boards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.config.environment import KeyMapSettings, KeySettings
from headrace.queues.messages import ActionBatch, Array
from headrace.queues.specs import ActionSpec, ObservationSpec
from headrace.stages.environments.protocol import AgentSteps, GameResults, StepResult
from headrace.stages.errors import StageError
from headrace.stages.games.group import BuiltinGame
from headrace.stages.games.scene import Display, Scene, area, disc

__all__ = ["ConnectFourGroup", "RandomPlayer", "TacticalPlayer"]


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


def to_planes(own_stones: Stones, other_stones: Stones) -> NDArray[np.int8]:
    """Return a player's observation [C, 84], PettingZoo's [6, 7, 2] flattened: own stones and the other player's."""
    stones = np.stack([own_stones, other_stones], axis=1)[:, None, :]
    bits = (stones >> _BIT_OF_PLACE[:, None]) & _ONE
    return bits.astype(np.int8).reshape(len(own_stones), 2 * PLACES)


def from_planes(planes: NDArray[np.int8]) -> tuple[Stones, Stones, NDArray[np.int8]]:
    """Invert `to_planes`: return own stones [C], the other player's stones [C], and the columns' heights [C, 7]."""
    places = planes.reshape(-1, PLACES, 2).astype(np.uint64)
    own_stones, other_stones = np.bitwise_or.reduce(places << _BIT_OF_PLACE[:, None], axis=1).T
    heights = places.reshape(-1, ROWS, COLUMNS, 2).sum(axis=(1, 3)).astype(np.int8)
    return own_stones, other_stones, heights


_MOVE_S: Final = 0.6
"""Seconds between two moves if both players need no time to think."""
_MARGIN: Final = 0.35
_COLOURS: Final = ("#e5584a", "#f3c73f")
_LINES: Final = ("#b23e34", "#c49a1c")
_BOARD, _HOLE = "#2d5fb3", "#e8edf4"
_NAMES: Final = ("red", "yellow")


ACTIONS = ActionSpec(discrete_branches=(COLUMNS,), masked=True)
"""The choice is the column for a stone; full columns are masked."""
OBSERVATION = ObservationSpec("observation", (2 * PLACES,), "int8")

_TEAMS = (0, 1)


class ConnectFourGroup(BuiltinGame):
    """`num_envs` Connect Four boards.

    Args:
        num_envs: number of boards.
        behavior: behaviour name; the ids are `<behavior>?team=0` and `<behavior>?team=1`.
        opening_moves: the maximum number of random moves at a game's start; each game draws its number, from 0 upwards.
            A game that its opening would end starts from the empty board instead. Self-play that always starts from the
            empty board soon masters its few openings, and little else.

    Raises:
        ValueError: if there is no board, or an option is out of range.
    """

    def __init__(self, num_envs: int, *, behavior: str = "ConnectFour", opening_moves: int = 0) -> None:
        super().__init__(num_envs, (f"{behavior}?team=0", f"{behavior}?team=1"), OBSERVATION, ACTIONS)
        if not 0 <= opening_moves < PLACES:
            raise ValueError(
                f"ConnectFourGroup: opening_moves is {opening_moves}; it must be 0 to {PLACES - 1}, so that at "
                "least one move is left"
            )
        self.stones = np.zeros((2, num_envs), np.uint64)
        """[2, C] each team's stones."""
        self.heights = np.zeros((num_envs, COLUMNS), np.int8)
        self._moves = np.zeros(num_envs, np.int32)
        self._opening_moves = opening_moves

    @property
    def to_move(self) -> NDArray[np.int64]:
        """[C] the team that moves next."""
        return (self._env_ids + self._episodes + self._moves) % 2

    def reset(self, seed: int | None = None) -> StepResult:
        """Start a new game on every board.

        Args:
            seed: determines all openings; None lets the random generator continue from its current state.
        """
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._episodes[:] = 0
        self._begin(self._env_ids)
        none = self._env_ids[:0]
        empty = np.empty((2, 0, 2 * PLACES), np.int8)
        return self._result(none, empty, np.empty((2, 0), np.float32), none)

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        """Drop one stone on every board.

        Args:
            actions: keyed by behaviour id; one row per board on which that team moves next.

        Raises:
            StageError: if a column is full.
        """
        mover = self.to_move
        columns = np.zeros(self.num_envs, np.int32)
        for team, behavior_id in enumerate(self.behavior_ids):
            if behavior_id in actions:
                columns[mover == team] = actions[behavior_id].discrete[:, 0]
        full = np.flatnonzero(~free(self.heights)[self._env_ids, columns])
        if len(full):
            raise StageError(
                f"connect four: column {columns[full[0]]} of board {full[0]} is full, so choosing it is masked"
            )
        self._drop(self._env_ids, columns)
        if self.on_tick is not None:
            self.on_tick()  # before a finished game's board is cleared
        won = four_in_a_row(self.stones[mover, self._env_ids])
        ended = np.flatnonzero(won | (self._moves == PLACES)).astype(np.int32)
        final = np.stack([self._seen(team, ended) for team in _TEAMS])
        victory = np.where(won[ended], 1 - 2 * mover[ended], 0).astype(np.float32)
        lengths = self._moves[ended]
        self._episodes[ended] += 1
        self._begin(ended)
        return self._result(ended, final, np.stack([victory, -victory]), lengths)

    @property
    def display(self) -> Display:
        """The fixed parts of a board on a screen."""
        wide, high, edge = float(COLUMNS), float(ROWS), 0.12
        corners = [(-edge, -edge), (wide + edge, -edge), (wide + edge, high + edge), (-edge, high + edge)]
        holes = [disc(x + 0.5, y + 0.5, 0.4, 0.4, _HOLE) for x in range(COLUMNS) for y in range(ROWS)]
        press = {str(column + 1): KeySettings(branch=0, value=column) for column in range(COLUMNS)}
        return Display(
            _MOVE_S,
            (-_MARGIN, -_MARGIN, wide + 2 * _MARGIN, high + 2 * _MARGIN),
            ("#eef2f7", "#dde5ef"),
            [area(corners, _BOARD), *holes],
            dict(zip(self.behavior_ids, _NAMES, strict=True)),
            dict.fromkeys(self.behavior_ids, KeyMapSettings(press=press, wait=True)),
            "four in a row wins",
        )

    def scene(self, env_id: int = 0) -> Scene:
        """Return one board's current appearance, as shapes."""
        planes = to_planes(self.stones[:1, env_id], self.stones[1:, env_id]).reshape(ROWS, COLUMNS, 2)
        shapes = [
            disc(x + 0.5, ROWS - 0.5 - row, 0.4, 0.4, _COLOURS[team], _LINES[team], 0.05)
            for row, x, team in np.argwhere(planes)
        ]
        return Scene(shapes)

    def _begin(self, boards: NDArray[np.int32]) -> None:
        """Start new games on some boards, with their openings."""
        self._empty(boards)
        if not self._opening_moves or not len(boards):
            return
        wanted = self._random.integers(0, self._opening_moves, len(boards), endpoint=True)
        for move in range(wanted.max()):
            going = boards[wanted > move]
            allowed = free(self.heights[going])
            self._drop(going, np.where(allowed, self._random.random(allowed.shape), -1.0).argmax(axis=1))
        self._empty(boards[four_in_a_row(self.stones[:, boards]).any(axis=0)])

    def _empty(self, boards: NDArray[np.int32]) -> None:
        self.stones[:, boards] = 0
        self.heights[boards] = 0
        self._moves[boards] = 0

    def _drop(self, boards: NDArray[np.int32], columns: NDArray[np.signedinteger]) -> None:
        """On each of some boards, drop a stone for the team whose move it is."""
        self.stones[self.to_move[boards], boards] |= drop(columns, self.heights[boards])
        self.heights[boards, columns] += 1
        self._moves[boards] += 1

    def _seen(self, team: int, boards: NDArray[np.signedinteger]) -> NDArray[np.int8]:
        return to_planes(self.stones[team, boards], self.stones[1 - team, boards])

    def _result(
        self,
        ended: NDArray[np.int32],
        final: NDArray[np.int8],
        rewards: NDArray[np.float32],
        lengths: NDArray[np.int32],
    ) -> StepResult:
        """Return the rows of both teams: final rows of boards `ended` [e], then the boards where the team moves next.

        Args:
            ended: [e] boards whose game is over; they have already restarted.
            final: [2, e, 84] each team's last observations on these boards.
            rewards: [2, e] each team's last rewards on these boards.
            lengths: [e] number of moves in these games.
        """
        mover = self.to_move
        steps = {}
        for team, behavior_id in enumerate(self.behavior_ids):
            deciding = self._env_ids[mover == team]
            boards = np.concatenate([ended, deciding])
            steps[behavior_id] = AgentSteps(
                agent_ids=boards.astype(np.int64) * 2 + team,
                env_ids=boards,
                episode_ids=np.concatenate([self._episodes[ended] - 1, self._episodes[deciding]]),
                observations=(np.concatenate([final[team], self._seen(team, deciding)]),),
                rewards=np.concatenate([rewards[team], np.zeros(len(deciding), np.float32)]),
                ended=len(ended),
                terminated=np.ones(len(ended), np.bool_),
                truncated=np.zeros(len(ended), np.bool_),
                action_masks=free(self.heights[deciding]),
            )
        if not len(ended):
            return StepResult(steps)
        games = GameResults(ended, ((1 + rewards.T) / 2).astype(np.float32))
        return StepResult(steps, games, {"Connect Four/Moves": float(lengths.mean())})


class RandomPlayer:
    """Drops its stone into any column that is not full, with equal probability."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def __call__(self, observations: tuple[Array, ...], masks: NDArray[np.bool_]) -> ActionBatch:
        """Decide for d boards, given masks [d, 7]."""
        return _any_of(masks, self._random)


class TacticalPlayer:
    """Plays a winning move if one exists, otherwise blocks the other player's winning move, otherwise moves at random.

    Among several equally good columns it chooses at random.
    """

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def __call__(self, observations: tuple[Array, ...], masks: NDArray[np.bool_]) -> ActionBatch:
        """Decide for d boards, given observations [d, 84] and masks [d, 7]."""
        own_stones, other_stones, heights = from_planes(observations[0])
        wins, threats = winning_columns(own_stones, heights), winning_columns(other_stones, heights)
        urgent = np.where(wins.any(axis=1, keepdims=True), wins, threats)
        return _any_of(np.where(urgent.any(axis=1, keepdims=True), urgent, masks), self._random)


def _any_of(columns: NDArray[np.bool_], random: np.random.Generator) -> ActionBatch:
    """Draw one of the marked columns [d, 7] per row, with equal probability."""
    chosen = np.where(columns, random.random(columns.shape), -1.0).argmax(axis=1)
    return ActionBatch(np.zeros((len(columns), 0), np.float32), chosen[:, None].astype(np.int32))

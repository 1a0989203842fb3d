"""Connect Four as an environment group: a tick is one move on every board.

A game is an episode for both teams: the winner's reward is 1, the loser's -1, and both get 0 if the board is full. The
teams take turns at moving first: in game e of board i, team 0 moves first if i + e is even, otherwise team 1. Games may
begin with random moves, which do not count as decisions.

Observations, actions and masks are those of PettingZoo's `classic/connect_four-v3`, so policies can be moved between
the two; this implementation is about fifty times as fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.config.environment import KeyMapSettings, KeySettings
from headrace.queues.messages import ActionBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.environments.protocol import AgentSteps, GameResults, StepResult
from headrace.stages.errors import StageError
from headrace.stages.games.connect_four import rules
from headrace.stages.games.connect_four.rules import Stones
from headrace.stages.games.scene import Display, Scene, area, disc

_MOVE_S: Final = 0.6
"""Seconds between two moves if both players need no time to think."""
_MARGIN: Final = 0.35
_COLOURS: Final = ("#e5584a", "#f3c73f")
_LINES: Final = ("#b23e34", "#c49a1c")
_BOARD, _HOLE = "#2d5fb3", "#e8edf4"
_NAMES: Final = ("red", "yellow")


def board_display(behavior_ids: tuple[str, ...]) -> Display:
    """Return the fixed parts of the display."""
    wide, high = float(rules.COLUMNS), float(rules.ROWS)
    edge = 0.12
    corners = [(-edge, -edge), (wide + edge, -edge), (wide + edge, high + edge), (-edge, high + edge)]
    holes = [disc(x + 0.5, y + 0.5, 0.4, 0.4, _HOLE) for x in range(rules.COLUMNS) for y in range(rules.ROWS)]
    press = {str(column + 1): KeySettings(branch=0, value=column) for column in range(rules.COLUMNS)}
    return Display(
        _MOVE_S,
        (-_MARGIN, -_MARGIN, wide + 2 * _MARGIN, high + 2 * _MARGIN),
        ("#eef2f7", "#dde5ef"),
        [area(corners, _BOARD), *holes],
        dict(zip(behavior_ids, _NAMES, strict=True)),
        dict.fromkeys(behavior_ids, KeyMapSettings(press=press, wait=True)),
        "four in a row wins",
    )


def board_scene(first: Stones, second: Stones) -> Scene:
    """Return a board's appearance, given the stones of both teams, each [1]."""
    planes = rules.to_planes(first, second).reshape(rules.ROWS, rules.COLUMNS, 2)
    shapes = [
        disc(x + 0.5, rules.ROWS - 0.5 - row, 0.4, 0.4, _COLOURS[team], _LINES[team], 0.05)
        for row, x, team in np.argwhere(planes)
    ]
    return Scene(shapes)


ACTIONS = ActionSpec(discrete_branches=(rules.COLUMNS,), masked=True)
"""The choice is the column for a stone; full columns are masked."""
OBSERVATION = ObservationSpec("observation", (2 * rules.PLACES,), "int8")

_TEAMS = (0, 1)


class ConnectFourGroup:
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
        if num_envs < 1:
            raise ValueError(f"ConnectFourGroup: num_envs is {num_envs}; it must be at least 1")
        if not 0 <= opening_moves < rules.PLACES:
            raise ValueError(
                f"ConnectFourGroup: opening_moves is {opening_moves}; it must be 0 to {rules.PLACES - 1}, so that at "
                "least one move is left"
            )
        self.num_envs = num_envs
        self.on_tick: Callable[[], None] | None = None
        """Called after each move, before a finished game's board is cleared."""
        self.behavior_ids = tuple(f"{behavior}?team={team}" for team in _TEAMS)
        self.behavior_specs: Mapping[str, BehaviorSpec] = {
            behavior_id: BehaviorSpec(behavior_id, (OBSERVATION,), ACTIONS) for behavior_id in self.behavior_ids
        }
        self.stones = np.zeros((2, num_envs), np.uint64)
        """[2, C] each team's stones."""
        self.heights = np.zeros((num_envs, rules.COLUMNS), np.int8)
        self._moves = np.zeros(num_envs, np.int32)
        self._episodes = np.zeros(num_envs, np.int64)
        self._boards = np.arange(num_envs, dtype=np.int32)
        self._opening_moves = opening_moves
        self._random = np.random.default_rng()

    @property
    def to_move(self) -> NDArray[np.int64]:
        """[C] the team that moves next."""
        return (self._boards + self._episodes + self._moves) % 2

    def reset(self, seed: int | None = None) -> StepResult:
        """Start a new game on every board.

        Args:
            seed: determines all openings; None lets the random generator continue from its current state.
        """
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._episodes[:] = 0
        self._begin(self._boards)
        none = self._boards[:0]
        empty = np.empty((2, 0, 2 * rules.PLACES), np.int8)
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
        full = np.flatnonzero(~rules.free(self.heights)[self._boards, columns])
        if len(full):
            raise StageError(
                f"connect four: column {columns[full[0]]} of board {full[0]} is full, so choosing it is masked"
            )
        self._drop(self._boards, columns)
        if self.on_tick is not None:
            self.on_tick()
        won = rules.four_in_a_row(self.stones[mover, self._boards])
        ended = np.flatnonzero(won | (self._moves == rules.PLACES)).astype(np.int32)
        final = np.stack([self._seen(team, ended) for team in _TEAMS])
        victory = np.where(won[ended], 1 - 2 * mover[ended], 0).astype(np.float32)
        lengths = self._moves[ended]
        self._episodes[ended] += 1
        self._begin(ended)
        return self._result(ended, final, np.stack([victory, -victory]), lengths)

    @property
    def display(self) -> Display:
        """The fixed parts of a board on a screen."""
        return board_display(self.behavior_ids)

    def scene(self, env_id: int = 0) -> Scene:
        """Return one board's current appearance, as shapes."""
        return board_scene(self.stones[:1, env_id], self.stones[1:, env_id])

    def close(self) -> None:
        """Do nothing, because there are no resources to release."""

    def _begin(self, boards: NDArray[np.int32]) -> None:
        """Start new games on some boards, with their openings."""
        self._empty(boards)
        if not self._opening_moves or not len(boards):
            return
        wanted = self._random.integers(0, self._opening_moves, len(boards), endpoint=True)
        for move in range(wanted.max()):
            going = boards[wanted > move]
            free = rules.free(self.heights[going])
            self._drop(going, np.where(free, self._random.random(free.shape), -1.0).argmax(axis=1))
        self._empty(boards[rules.four_in_a_row(self.stones[:, boards]).any(axis=0)])

    def _empty(self, boards: NDArray[np.int32]) -> None:
        self.stones[:, boards] = 0
        self.heights[boards] = 0
        self._moves[boards] = 0

    def _drop(self, boards: NDArray[np.int32], columns: NDArray[np.signedinteger]) -> None:
        """On each of some boards, drop a stone for the team whose move it is."""
        self.stones[self.to_move[boards], boards] |= rules.drop(columns, self.heights[boards])
        self.heights[boards, columns] += 1
        self._moves[boards] += 1

    def _seen(self, team: int, boards: NDArray[np.signedinteger]) -> NDArray[np.int8]:
        return rules.to_planes(self.stones[team, boards], self.stones[1 - team, boards])

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
            deciding = self._boards[mover == team]
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
                action_masks=rules.free(self.heights[deciding]),
            )
        if not len(ended):
            return StepResult(steps)
        games = GameResults(ended, ((1 + rewards.T) / 2).astype(np.float32))
        return StepResult(steps, games, {"Connect Four/Moves": float(lengths.mean())})

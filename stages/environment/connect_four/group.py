"""Connect four as an environment group: a tick is one move on every board.

A game is an episode of both teams: 1 for the winner, -1 for the loser, 0 for both where the board is full. The teams
take turns at moving first: team t begins game e of board i where i + e is even for t = 0, odd for t = 1.

Observations, actions and masks are those of PettingZoo's `classic/connect_four-v3`, so policies can change between
the two; this one plays some fifty times as many moves in a second.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from stages.environment.connect_four import rules
from stages.environment.protocol import ActionBatch, AgentSteps, GameResults, StepResult
from stages.errors import StageError

ACTIONS = ActionSpec(discrete_branches=(rules.COLUMNS,), masked=True)
"""The column that a stone is dropped into; full ones are masked."""
OBSERVATION = ObservationSpec("observation", (2 * rules.PLACES,), "int8")

_TEAMS = (0, 1)


class ConnectFourGroup:
    """`num_envs` boards of connect four.

    Args:
        num_envs: boards.
        behavior: behaviour name; the ids are `<behavior>?team=0` and `<behavior>?team=1`.

    Raises:
        ValueError: if there is no board.
    """

    def __init__(self, num_envs: int, *, behavior: str = "ConnectFour") -> None:
        if num_envs < 1:
            raise ValueError(f"ConnectFourGroup: num_envs is {num_envs}; it must be at least 1")
        self.num_envs = num_envs
        self.behavior_ids = tuple(f"{behavior}?team={team}" for team in _TEAMS)
        self.behavior_specs: Mapping[str, BehaviorSpec] = {
            behavior_id: BehaviorSpec(behavior_id, (OBSERVATION,), ACTIONS) for behavior_id in self.behavior_ids
        }
        self.stones = np.zeros((2, num_envs), np.uint64)
        """[2, C] of each team."""
        self.heights = np.zeros((num_envs, rules.COLUMNS), np.int8)
        self._moves = np.zeros(num_envs, np.int32)
        self._episodes = np.zeros(num_envs, np.int64)
        self._boards = np.arange(num_envs, dtype=np.int32)

    @property
    def to_move(self) -> NDArray[np.int64]:
        """[C] the team whose turn it is."""
        return (self._boards + self._episodes + self._moves) % 2

    def reset(self, seed: int | None = None) -> StepResult:
        """Begin a new game on every board; there is no chance in it, so `seed` has no effect."""
        self.stones[:] = 0
        self.heights[:] = 0
        self._moves[:] = 0
        self._episodes[:] = 0
        nobody = self._boards[:0]
        empty = np.empty((2, 0, 2 * rules.PLACES), np.int8)
        return self._result(nobody, empty, np.empty((2, 0), np.float32), nobody)

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        """Drop one stone on every board.

        Args:
            actions: by behaviour id, one row per board on which that team is to move.

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
            raise StageError(f"connect four: column {columns[full[0]]} of board {full[0]} is full; masks say so")
        self.stones[mover, self._boards] |= rules.drop(columns, self.heights)
        self.heights[self._boards, columns] += 1
        self._moves += 1
        won = rules.four_in_a_row(self.stones[mover, self._boards])
        ended = np.flatnonzero(won | (self._moves == rules.PLACES)).astype(np.int32)
        final = np.stack([self._seen(team, ended) for team in _TEAMS])
        victory = np.where(won[ended], 1 - 2 * mover[ended], 0).astype(np.float32)
        lengths = self._moves[ended]
        self.stones[:, ended] = 0
        self.heights[ended] = 0
        self._moves[ended] = 0
        self._episodes[ended] += 1
        return self._result(ended, final, np.stack([victory, -victory]), lengths)

    def close(self) -> None:
        """Nothing to release."""

    def _seen(self, team: int, boards: NDArray[np.signedinteger]) -> NDArray[np.int8]:
        return rules.to_planes(self.stones[team, boards], self.stones[1 - team, boards])

    def _result(
        self,
        ended: NDArray[np.int32],
        final: NDArray[np.int8],
        rewards: NDArray[np.float32],
        lengths: NDArray[np.int32],
    ) -> StepResult:
        """The rows of both teams: the endings of boards `ended` [e], then the boards where the team is to move.

        Args:
            ended: [e] boards whose game is over; they have begun anew.
            final: [2, e, 84] what each team saw last there.
            rewards: [2, e] what each team received.
            lengths: [e] moves of these games.
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

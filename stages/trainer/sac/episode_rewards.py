"""Statistics of an episode's rewards by all signals except the environment's, computed piece by piece on arrival.

Learning does not depend on them: an update recomputes the rewards of the rows that it draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Array, TrajectoryBatch
from headrace.stages.policy.observations import EncodedObservations
from headrace.stages.trainer.agent_table import AgentTable, add_to_episodes
from headrace.stages.trainer.rewards.signal import Extrinsic, RewardSignal
from headrace.stages.trainer.sac.minibatch import MinibatchMaker
from headrace.stages.trainer.sac.replay_memory import ReplayedRows

BLOCK = 1024
"""Rows whose rewards are computed in one pass: observations may be images."""


class EpisodeRewards:
    """Sums of rewards over episodes, times strength, by each signal except the environment's.

    Args:
        signals: all signals of the behaviour.
        maker: makes transitions of rows.
    """

    def __init__(self, signals: Sequence[RewardSignal], maker: MinibatchMaker) -> None:
        self._others = [signal for signal in signals if not isinstance(signal, Extrinsic)]
        self._maker = maker
        self._sums = AgentTable(len(self._others), "float64")

    def add(
        self, batch: TrajectoryBatch, rows: EncodedObservations, finals: EncodedObservations, update: int
    ) -> dict[str, list[float]]:
        """Add trajectories; return the sums of the episodes that ended, by the names of their statistics.

        Args:
            batch: the trajectories.
            rows: the observations of their rows.
            finals: the observations after each trajectory.
            update: the number of updates so far.

        Raises:
            NotFiniteError: if a reward is NaN or infinite.
        """
        if not self._others:
            return {}
        rewards = self._rewards(_as_replayed(batch, rows, finals))
        sums = np.add.reduceat(rewards, np.cumsum(batch.lengths) - batch.lengths)
        columns = batch.trajectories
        ended = batch.terminated | batch.truncated
        finished = add_to_episodes(self._sums, columns["agent_ids"], columns["episode_ids"], ended, sums, update)
        return {
            f"Policy/{signal.name.capitalize()} Reward": finished[:, column].tolist()
            for column, signal in enumerate(self._others)
            if len(finished)
        }

    def state_dict(self) -> dict[str, Any]:
        """The sums of unfinished episodes."""
        return self._sums.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`."""
        self._sums.load_state_dict(state)

    def _rewards(self, whole: ReplayedRows) -> NDArray[np.float64]:
        count = len(whole.columns["rewards"])
        rewards = np.empty((count, len(self._others)))
        for start in range(0, count, BLOCK):
            block = slice(start, start + BLOCK)
            taken = self._maker.transitions(_block(whole, block))
            for column, signal in enumerate(self._others):
                rewards[block, column] = signal.rewards(taken) * signal.strength
        return rewards


def _as_replayed(batch: TrajectoryBatch, rows: EncodedObservations, finals: EncodedObservations) -> ReplayedRows:
    """Trajectories in the form of replayed rows: each row with the observation after it."""
    last = np.cumsum(batch.lengths) - 1
    following = np.minimum(np.arange(batch.num_rows) + 1, batch.num_rows - 1)
    terminated = np.zeros(batch.num_rows, np.bool_)
    terminated[last] = batch.terminated

    def next_of(row: Array, final: Array) -> Array:
        array = row[following]
        array[last] = final
        return array

    others = tuple(next_of(row, final) for row, final in zip(rows.others, finals.others, strict=True))
    columns = {**batch.rows, "terminated": terminated}
    return ReplayedRows(rows, EncodedObservations(next_of(rows.vectors, finals.vectors), others), columns)


def _block(whole: ReplayedRows, rows: slice) -> ReplayedRows:
    def cut(encoded: EncodedObservations) -> EncodedObservations:
        return EncodedObservations(encoded.vectors[rows], tuple(other[rows] for other in encoded.others))

    columns = {name: column[rows] for name, column in whole.columns.items()}
    return ReplayedRows(cut(whole.observations), cut(whole.next_observations), columns)

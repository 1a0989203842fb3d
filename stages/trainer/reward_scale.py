"""Rewards divided by the running standard deviation of discounted returns, which keeps value targets near 1.

As in `VecNormalize` of Stable-Baselines3 (and Engstrom et al. (2020), "Implementation Matters in Deep Policy
Gradients", section 3): each agent's R = γ·R + r restarts with each episode; its variance over all steps so far is kept,
and a reward becomes r / sqrt(variance + 1e-8), clipped to ±10. The rewards of a buffer are divided by the deviation
after its last row; a replay memory keeps unscaled rewards, which are divided by the deviation at the time of the draw.
Scores and statistics stay in the environment's own rewards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import TrajectoryBatch
from headrace.stages.trainer.agent_table import AgentTable, Chains

LIMIT = 10.0
_EPSILON = 1e-8
_FIRST_COUNT = 1e-4
"""The number of steps that the initial variance of 1 counts as."""

Floats = NDArray[np.float64]


class RewardScale:
    """The running deviation of one behaviour's discounted returns.

    Args:
        gamma: γ, the discount.
    """

    def __init__(self, gamma: float) -> None:
        self._gamma = gamma
        self._count, self._mean, self._variance = _FIRST_COUNT, 0.0, 1.0
        self._returns = AgentTable(1, "float64")
        """R for each agent in the middle of an episode."""

    def see(
        self,
        rewards: NDArray[np.floating[Any]],
        lengths: NDArray[np.integer[Any]],
        agents: NDArray[np.int64],
        episodes: NDArray[np.int64],
        ended: NDArray[np.bool_],
        update: int,
        chains: Chains | None = None,
    ) -> None:
        """Count the rewards [N] of K consecutive trajectories.

        Args:
            rewards: [N]
            lengths: [K] rows of each trajectory.
            agents: [K] the agent of each.
            episodes: [K] the episode of each.
            ended: [K] true if the episode ends with the trajectory.
            update: the update's number, ascending; see `AgentTable.keep`.
            chains: which trajectory continues which, if already known.
        """
        chains = chains or Chains.of(agents, episodes, ended)
        found, after = np.empty(len(rewards)), self._returns.values_of(agents, episodes)[:, 0]
        starts = np.cumsum(lengths) - lengths
        for which in chains.rounds:
            before = chains.previous[which]
            returns = np.where(before < 0, after[which], after[before])
            self._walk(rewards, starts[which], lengths[which], returns, found)
            after[which] = found[starts[which] + lengths[which] - 1]
        last = chains.latest
        self._returns.keep(agents[last], episodes[last], after[last][:, None], ended[last], update)
        self._include(found)

    def see_batch(self, batch: TrajectoryBatch, update: int) -> None:
        """Count trajectories whose rewards are single columns; `update` as in `see`."""
        columns = batch.trajectories
        ended = batch.terminated | batch.truncated
        self.see(batch.rows["rewards"], batch.lengths, columns["agent_ids"], columns["episode_ids"], ended, update)

    def apply(self, rewards: NDArray[np.floating[Any]]) -> Floats:
        """Return scaled rewards, of any shape."""
        scaled: Floats = np.clip(rewards / np.sqrt(self._variance + _EPSILON), -LIMIT, LIMIT)
        return scaled

    def state_dict(self) -> dict[str, Any]:
        """The complete state."""
        moments = {"count": self._count, "mean": self._mean, "variance": self._variance}
        return {**moments, "returns": self._returns.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`."""
        self._count, self._mean, self._variance = (float(state[name]) for name in ("count", "mean", "variance"))
        self._returns.load_state_dict(state["returns"])

    def _walk(
        self,
        rewards: NDArray[np.floating[Any]],
        starts: NDArray[np.integer[Any]],
        lengths: NDArray[np.integer[Any]],
        returns: Floats,
        found: Floats,
    ) -> None:
        """Write R for trajectories in parallel, from its value before each."""
        order = np.argsort(-lengths, kind="stable")
        starts, returns = starts[order], returns[order]
        going = np.searchsorted(-lengths[order], -np.arange(int(lengths.max())), side="left")
        for step, count in enumerate(going.tolist()):
            rows = starts[:count] + step
            returns[:count] *= self._gamma
            returns[:count] += rewards[rows]
            found[rows] = returns[:count]

    def _include(self, values: Floats) -> None:
        """Join the moments of two sets, after Chan, Golub and LeVeque (1979)."""
        count, mean, variance = len(values), float(values.mean()), float(values.var())
        total, delta = self._count + count, mean - self._mean
        squares = self._variance * self._count + variance * count + delta * delta * self._count * count / total
        self._mean += delta * count / total
        self._count, self._variance = total, squares / total

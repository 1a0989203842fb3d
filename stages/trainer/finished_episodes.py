"""The episodes that have ended in a trainer's stream: their statistics, and the returns that others decide by."""

from __future__ import annotations

import math
from collections import deque
from itertools import islice

import numpy as np

from headrace.queues.messages import Array, TrajectoryBatch
from headrace.stages.stage import Statistics

RECENT_EPISODES = 100
"""Episodes behind the recent mean return, the field's usual yardstick."""


class FinishedEpisodes:
    """Counts and reports episodes of the behaviour's learning agents.

    Args:
        behavior: the behaviour name.
        strength: strength of the extrinsic reward, for its statistic; 0 if it is not learned from.
        kept_returns: number of returns kept for the next report at most.
        judged: returns that a criterion looks at.
        told: whether statistics are reported; those of an imitator's episodes are its teacher's.

    Attributes:
        count: episodes so far.
        recent: returns of the last (up to) 100 ones, or as many as are judged.
        parameter_generation: generation of the environment parameters under which those of the kept returns began.
    """

    def __init__(self, behavior: str, strength: float, kept_returns: int, told: bool, judged: int = 0) -> None:
        self.count = 0
        self.recent: deque[float] = deque(maxlen=max(RECENT_EPISODES, judged))
        self.parameter_generation = 0
        self._behavior = behavior
        self._strength = strength
        self._kept: deque[float] = deque(maxlen=kept_returns)
        self._told = told

    @property
    def recent_return(self) -> float | None:
        """Mean return of the last (up to) 100 episodes, None before the first."""
        recent = [*islice(reversed(self.recent), RECENT_EPISODES)]
        return math.fsum(recent) / len(recent) if recent else None

    def add(self, batch: TrajectoryBatch, statistics: Statistics) -> None:
        """Take the episodes that have ended in a batch."""
        if not batch.episodes or not len(batch.episodes["episode_returns"]):
            return
        learning = batch.episodes["episode_learning"]
        returns = batch.episodes["episode_returns"][learning].tolist()
        lengths = batch.episodes["episode_lengths"][learning].tolist()
        self.count += len(returns)
        self._keep(returns, batch.episodes.get("episode_parameters"), learning)
        if not self._told:
            return
        self.recent.extend(returns)
        statistics.extend(self._behavior, "Environment/Cumulative Reward", returns, "histogram")
        statistics.extend(self._behavior, "Environment/Episode Length", lengths, "mean")
        if self._strength:
            scaled = [value * self._strength for value in returns]
            statistics.extend(self._behavior, "Policy/Extrinsic Reward", scaled, "mean")
        if "episode_group_over" in batch.episodes:
            over = learning & batch.episodes["episode_group_over"]
            of_groups = batch.episodes["episode_group_returns"][over].tolist()
            statistics.extend(self._behavior, "Environment/Group Cumulative Reward", of_groups, "histogram")

    def take_returns(self) -> tuple[float, ...]:
        """Return what was kept since the last call: the newest returns, all begun under the same parameters."""
        returns = tuple(self._kept)
        self._kept.clear()
        return returns

    def _keep(self, returns: list[float], parameters: Array | None, learning: Array) -> None:
        """Keep returns; those of episodes begun under older parameters go when newer ones come."""
        begun = parameters[learning] if parameters is not None else np.zeros(len(returns), np.int32)
        newest = int(begun.max(initial=0))
        if newest > self.parameter_generation:
            self.parameter_generation = newest
            self._kept.clear()
        self._kept.extend(
            value for value, one in zip(returns, begun.tolist(), strict=True) if one == self.parameter_generation
        )

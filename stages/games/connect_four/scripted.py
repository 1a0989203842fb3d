"""Scripted players as baselines: one moves at random, one looks one move ahead."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch, Array
from headrace.stages.games.connect_four import rules


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
        own, other, heights = rules.from_planes(observations[0])
        wins, threats = rules.winning_columns(own, heights), rules.winning_columns(other, heights)
        urgent = np.where(wins.any(axis=1, keepdims=True), wins, threats)
        return _any_of(np.where(urgent.any(axis=1, keepdims=True), urgent, masks), self._random)


def _any_of(columns: NDArray[np.bool_], random: np.random.Generator) -> ActionBatch:
    """Draw one of the marked columns [d, 7] per row, with equal probability."""
    chosen = np.where(columns, random.random(columns.shape), -1.0).argmax(axis=1)
    return ActionBatch(np.zeros((len(columns), 0), np.float32), chosen[:, None].astype(np.int32))

"""A task in which each decision has a cost, for action repeat: a custom environment, and a stage that subtracts it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace import Stage, TrajectoryBatch

LAMPS = 3
SHINES = (2, 5, 8)
"""Numbers of steps for which a lamp may shine, each equally likely."""
LONGEST = max(SHINES)


class Lamps(gymnasium.Env[NDArray[np.float32], np.int64]):
    """One of three lamps shines for a while, then another one; each step of pointing at the shining lamp gives 1.

    The agent sees which lamp shines and for how many more steps, so that it can keep pointing at that lamp, and how
    much of the time is left. When time is up, the task ends.

    Args:
        length: number of steps in an episode.
    """

    def __init__(self, length: int = 120) -> None:
        self.observation_space = spaces.Box(0, 1, (LAMPS + LONGEST + 1,), np.float32)
        self.action_space = spaces.Discrete(LAMPS)
        self._length = length
        self._t = self._lamp = self._left = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start an episode with a random lamp."""
        super().reset(seed=seed)
        self._t = 0
        self._switch()
        return self._seen(), {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Point at a lamp for one step."""
        reward = float(action == self._lamp)
        self._t += 1
        self._left -= 1
        if not self._left:
            self._switch()
        return self._seen(), reward, self._t >= self._length, False, {}

    def _switch(self) -> None:
        self._lamp = (self._lamp + int(self.np_random.integers(1, LAMPS))) % LAMPS
        self._left = int(self.np_random.choice(SHINES))

    def _seen(self) -> NDArray[np.float32]:
        seen = np.zeros(LAMPS + LONGEST + 1, np.float32)
        seen[self._lamp] = seen[LAMPS + self._left - 1] = 1
        seen[-1] = 1 - self._t / self._length
        return seen


class Charge(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Subtracts a price for each decision from the decision's reward, and from the returns of episodes.

    Args:
        price: the price of a decision.
    """

    def __init__(self, price: float) -> None:
        self._price = np.float32(price)

    def process(self, item: TrajectoryBatch) -> Iterator[TrajectoryBatch]:
        """Charge for a batch's decisions."""
        charged = item.replace(rewards=item.rewards - self._price)
        if item.episodes:
            decisions = item.episodes["episode_lengths"]
            charged = charged.replace(episode_returns=item.episodes["episode_returns"] - self._price * decisions)
        yield charged

"""Flipping bits, the task with which the paper on hindsight begins: as many as are wrong have to be flipped."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

FACTORY = "goal_env:BitFlipping"


class BitFlipping(gymnasium.Env):
    """The reward is 0 when all bits are the goal's, and -1 else.

    Args:
        bits: how many, each with an action.
        box: observations are numbers instead of bits.
        broken: what is wrong with `compute_reward`.
        bonus: beside its reward, at each step.
    """

    def __init__(self, bits: int = 8, box: bool = False, broken: str = "", bonus: float = 0.0):
        each = Box(0, 1, (bits,), np.float64) if box else MultiBinary(bits)
        self.observation_space = Dict({"observation": each, "achieved_goal": each, "desired_goal": each})
        self.action_space = Discrete(bits)
        self._bits, self._box, self.broken, self._bonus = bits, box, broken, bonus
        if broken != "missing":
            self.compute_reward = self._reward

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self._state, self._goal = self.np_random.integers(2, size=(2, self._bits), dtype=np.int8)
        self._steps = 0
        return self._observed(), {}

    def step(self, action):
        self._state[action] ^= 1
        self._steps += 1
        reward = float(self._reward(self._state, self._goal, {}))
        return (
            self._observed(),
            reward + self._bonus,
            reward == 0,
            self._steps == self._bits,
            {"is_success": reward == 0},
        )

    def _reward(self, achieved, desired, info):
        if self.broken == "raises":
            return info["distance"]
        if self.broken == "scalar":
            return -float((achieved != desired).any())
        reward = np.where((achieved == desired).all(axis=-1), 0.0, -1.0)
        return reward * np.nan if self.broken == "nan" else reward

    def _observed(self):
        dtype = np.float64 if self._box else np.int8
        return {
            "observation": self._state.astype(dtype),
            "achieved_goal": self._state.astype(dtype),
            "desired_goal": self._goal.astype(dtype),
        }

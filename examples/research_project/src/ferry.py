"""The environment: a ferry crosses a river whose current cancels some of the ferry's steps."""

import gymnasium
import numpy as np

from config import CURRENT, LENGTH, MAX_STEPS


class Ferry(gymnasium.Env):
    """Action 0 goes left, 1 goes right. The observation is the position, from -1 to 1; the right bank is the goal."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, current: float = CURRENT):
        self.current = current

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.age = LENGTH // 2, 0
        return self._seen(), {}

    def step(self, action):
        if self.np_random.random() >= self.current:
            self.at += 1 if action else -1
        self.age += 1
        arrived, lost = self.at == LENGTH, self.at == 0
        return self._seen(), float(arrived) - 0.01, arrived or lost, self.age >= MAX_STEPS, {}

    def _seen(self):
        return np.array([2 * self.at / LENGTH - 1], np.float32)

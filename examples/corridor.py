"""Train a custom environment, and query its policy: `python corridor.py`."""

import gymnasium
import numpy as np

from headrace import load_policy, run


class Corridor(gymnasium.Env):  # find the way to the middle: action 0 goes left, 1 goes right
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = self.np_random.choice([-0.5, 0.5])
        return np.array([self.at], np.float32), {}

    def step(self, action):
        self.at += 0.1 if action else -0.1
        there, out = abs(self.at) < 0.05, abs(self.at) > 0.95
        return np.array([self.at], np.float32), float(there) - float(out), there or out, False, {}


if __name__ == "__main__":  # actors import this file
    environment = {"kind": "gymnasium", "factory": Corridor, "behavior": "Corridor", "num_envs": 16}
    updates = {"buffer_size": 1000, "batch_size": 100, "learning_rate": 3e-3}
    corridor = {"trainer_type": "ppo", "max_steps": 10000, "hyperparameters": updates}
    folder = {"run_id": "corridor", "force": True}  # replaces an earlier run
    result = run({"environment": environment, "behaviors": {"Corridor": corridor}, "checkpoint_settings": folder})
    print(load_policy(result.folder).predict([[-0.4], [0.4]]).action)

"""An environment whose observations lie as far from 0 as its options say, for one agent and for two."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Price(gymnasium.Env):
    """Observes offset + scale · s, with s 0 or 1."""

    def __init__(self, offset, scale=1.0, dtype="float32"):
        self.offset, self.scale, self.dtype = offset, scale, np.dtype(dtype)
        low, high = (-np.inf, np.inf) if self.dtype.kind == "f" else (0, 2**40)
        self.observation_space, self.action_space = spaces.Box(low, high, (1,), self.dtype.type), spaces.Discrete(2)

    def seen(self, s=None):
        return np.array([self.offset + self.scale * (self.s if s is None else s)], self.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.s, self.t = int(self.np_random.integers(2)), 0
        return self.seen(), {}

    def step(self, action):
        reward = float(int(action) == self.s)
        self.s, self.t = int(self.np_random.integers(2)), self.t + 1
        return self.seen(), reward, False, self.t >= 8, {}


class Prices:
    """Two agents, each with a price of its own, as in a parallel environment of PettingZoo."""

    def __init__(self, **options):
        self.possible_agents = ["a", "b"]
        self._of = {agent: Price(**options) for agent in self.possible_agents}

    def observation_space(self, agent):
        return self._of[agent].observation_space

    def action_space(self, agent):
        return self._of[agent].action_space

    def reset(self, seed=None, options=None):
        self.agents = [*self.possible_agents]
        begun = {
            agent: env.reset(seed=None if seed is None else seed + n) for n, (agent, env) in enumerate(self._of.items())
        }
        return {agent: seen for agent, (seen, _) in begun.items()}, {agent: {} for agent in begun}

    def step(self, actions):
        moved = {agent: self._of[agent].step(action) for agent, action in actions.items()}
        if any(truncated for _, _, _, truncated, _ in moved.values()):
            self.agents = []
        return tuple({agent: each[part] for agent, each in moved.items()} for part in range(5))

"""Tasks with planted faults, each beside the same task without it, and the settings of runs that fail by settings alone.

`LINE` is healthy: bring a point on a line to a target. Every subclass has one fault.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Line(gymnasium.Env):
    """Move a point left, stay or right, to a target; each step costs the distance."""

    observation_space: Any = Box(-6, 6, (2,))
    action_space: Any = Discrete(3)
    limit = 20

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.target = self.np_random.uniform(-1, 1, 2)
        self.t = 0
        return self.look(), {}

    def look(self):
        return np.array([self.at, self.target], np.float32)

    def move(self, action):
        self.at = float(np.clip(self.at + 0.2 * (int(action) - 1), -5, 5))

    def step(self, action):
        self.move(action)
        self.t += 1
        return self.look(), -abs(self.at - self.target), False, self.t >= self.limit, {}


class ActionIgnored(Line):
    def move(self, action):
        self.at = float(np.clip(self.at + self.np_random.uniform(-0.2, 0.2), -5, 5))


class ActionScale(Line):
    """The declared range is a thousand times the range that counts."""

    action_space = Box(0, 1000, (1,))

    def move(self, action):
        self.at = float(np.clip(self.at + 0.2 * np.clip(action[0], -1, 1), -5, 5))


class Continuous(Line):
    action_space = Box(-1, 1, (1,))

    def move(self, action):
        self.at = float(np.clip(self.at + 0.2 * action[0], -5, 5))


class Stale(Line):
    def step(self, action):
        before = self.look()
        _, *rest = super().step(action)
        return before, *rest


class Constant(Line):
    def look(self):
        return np.zeros(2, np.float32)


class Frozen(Line):
    def reset(self, *, seed=None, options=None):
        self.first = None
        return super().reset(seed=seed, options=options)

    def look(self):
        if self.first is None:
            self.first = super().look()
        return self.first


class EndsAtOnce(Line):
    def step(self, action):
        super().step(action)
        return self.look(), 0.0, True, False, {}


class Huge(Line):
    def step(self, action):
        seen, reward, *rest = super().step(action)
        return seen, 1e4 * reward, *rest


class Paid(Line):
    """The same reward whatever happens."""

    def step(self, action):
        seen, _, *rest = super().step(action)
        return seen, 1.0, *rest


class Guess(gymnasium.Env):
    """One step: name the cue. Healthy."""

    observation_space = Box(0, 1, (4,))
    action_space = Discrete(4)
    late = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cue = int(self.np_random.integers(4))
        return np.eye(4, dtype=np.float32)[self.cue], {}

    paid = 0.0

    def step(self, action):
        now = float(int(action) == self.cue)
        reward, self.paid = (self.paid if self.late else now), now
        return np.zeros(4, np.float32), reward, True, False, {}


class Late(Guess):
    """The reward of the episode before."""

    late = True


class Recall(gymnasium.Env):
    """Name a cue that only the first of four steps shows."""

    observation_space = Box(0, 1, (4,))
    action_space = Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.cue = 0, int(self.np_random.integers(3))
        return self.look(), {}

    def look(self):
        seen = np.zeros(4, np.float32)
        if self.t == 0:
            seen[self.cue] = 1
        seen[3] = self.t == 3
        return seen

    def step(self, action):
        self.t += 1
        over = self.t >= 4
        return self.look(), float(over and int(action) == self.cue), over, False, {}


class NoVelocity(gymnasium.ObservationWrapper):
    """CartPole's positions without its velocities."""

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.observation_space = Box(-np.inf, np.inf, (2,))

    def observation(self, observation):
        return observation[::2]


class ResetNot(Line):
    """Reaching the target ends the episode, and the reset leaves the point there."""

    at = None
    limit = 30

    def reset(self, *, seed=None, options=None):
        before = self.at
        seen, info = super().reset(seed=seed, options=options)
        if before is not None:
            self.at, self.target = before, 0.0
            seen = self.look()
        else:
            self.target = 0.0
            seen = self.look()
        return seen, info

    def step(self, action):
        seen, reward, _, over, info = super().step(action)
        return seen, reward, abs(self.at) < 0.15, over, info

"""A PettingZoo environment with any number of behaviours, which `compare_growth.py` uses to measure their cost.

Each behaviour has eight agents, which walk on a line for 50 steps and are rewarded for being near its middle;
`walker3_5` is the sixth agent of the behaviour `walker3`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

AGENTS, STEPS = 8, 50


class Crowd:
    """Walkers on separate lines.

    Args:
        behaviors: number of behaviours.
    """

    def __init__(self, behaviors: int = 1, render_mode: str | None = None) -> None:
        self.possible_agents = [f"walker{kind}_{n}" for kind in range(behaviors) for n in range(AGENTS)]
        self.agents: list[str] = []
        self.render_mode = render_mode
        self.metadata = {"name": "crowd", "render_modes": []}
        self._seen, self._moves = spaces.Box(-10.0, 10.0, (2,), np.float32), spaces.Discrete(3)
        self._random = np.random.default_rng()

    def observation_space(self, agent: str) -> spaces.Box:
        """Return the space of observations: position, and time left."""
        return self._seen

    def action_space(self, agent: str) -> spaces.Discrete:
        """Return the space of actions: left, stay, right."""
        return self._moves

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start all agents at random positions."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents, self._time = list(self.possible_agents), 0
        self._places = self._random.uniform(-2, 2, len(self.agents))
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """Move every agent by a tenth to the left or right, or not at all."""
        moves = np.array([actions[agent] for agent in self.agents])
        self._places, self._time = np.clip(self._places + 0.1 * (moves - 1), -9, 9), self._time + 1
        names, late = self.agents, self._time >= STEPS
        rewards = dict(zip(names, (-np.abs(self._places)).tolist(), strict=True))
        seen = self._observations()
        self.agents = [] if late else names
        return seen, rewards, dict.fromkeys(names, False), dict.fromkeys(names, late), {name: {} for name in names}

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    def _observations(self) -> dict[str, Any]:
        left = np.full_like(self._places, 1 - self._time / STEPS)
        return dict(zip(self.agents, np.stack((self._places, left), axis=1).astype(np.float32), strict=True))

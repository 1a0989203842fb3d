"""One team, or two against each other, whose members may be out before their team is; to lie beside the YAML.

It has PettingZoo's methods, and nothing of PettingZoo in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

SIDES = ("red", "blue")


class Teams:
    """Everybody sees a number, -1 or 1, and has to answer it: who is wrong twice is out. Who is right earns a tenth.

    Args:
        sides: how many teams.
        members: of each.
        length: steps after which a game is broken off.
    """

    metadata: dict[str, Any] = {}
    render_mode = None

    def __init__(self, sides: int = 1, members: int = 2, length: int = 6) -> None:
        self.possible_agents = [f"{side}_{member}" for side in SIDES[:sides] for member in range(members)]
        self.agents: list[str] = []
        self._length = length
        self._random = np.random.default_rng(0)
        self._asked: dict[str, float] = {}
        self._wrong: dict[str, int] = {}
        self._t = 0

    def observation_space(self, agent: str) -> spaces.Box:
        return spaces.Box(-1, 1, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self._wrong = dict.fromkeys(self.agents, 0)
        self._t = 0
        return self._ask(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        acted = list(self.agents)
        right = {agent: (int(actions[agent]) == 1) == (self._asked[agent] > 0) for agent in acted}
        for agent in acted:
            self._wrong[agent] += not right[agent]
        self._t += 1
        out = {agent: self._wrong[agent] == 2 for agent in acted}
        late = {agent: self._t == self._length and not out[agent] for agent in acted}
        self.agents = [agent for agent in acted if not (out[agent] or late[agent])]
        rewards = {agent: 0.1 * right[agent] for agent in acted}
        return self._ask(acted), rewards, out, late, {agent: {} for agent in acted}

    def close(self) -> None:
        pass

    def _ask(self, agents: Sequence[str]) -> dict[str, Any]:
        self._asked = {agent: float(self._random.choice([-1.0, 1.0])) for agent in agents}
        return {agent: np.array([self._asked[agent], self._wrong[agent]], np.float32) for agent in agents}

"""Two behaviours, of which the second one is born late; to lie beside the YAML. It has PettingZoo's methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces


class Late:
    """Agent `early_0` is there from the beginning, `late_0` in the games that begin after some steps.

    Args:
        after: steps, over all games, before `late_0` joins.
        length: steps of a game.
        late: False if there is no `late_0` at all.
    """

    metadata: dict[str, Any] = {}
    render_mode = None

    def __init__(self, after: int = 300, length: int = 6, late: bool = True) -> None:
        self.possible_agents = ["early_0", "late_0"] if late else ["early_0"]
        self.agents: list[str] = []
        self._after, self._length = after, length
        self._steps = self._t = 0

    def observation_space(self, agent: str) -> spaces.Box:
        return spaces.Box(-1, 1, (2 if agent.startswith("early") else 3,), np.float32)

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self._t = 0
        self.agents = self.possible_agents[: 2 if self._steps >= self._after else 1]
        return self._seen(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        acted = list(self.agents)
        self._t += 1
        self._steps += 1
        over = dict.fromkeys(acted, self._t == self._length)
        self.agents = [] if self._t == self._length else acted
        rewards = {agent: float(actions[agent]) for agent in acted}
        return self._seen(acted), rewards, over, dict.fromkeys(acted, False), {agent: {} for agent in acted}

    def close(self) -> None:
        pass

    def _seen(self, agents: Sequence[str]) -> dict[str, Any]:
        return {agent: np.full(self.observation_space(agent).shape, self._t / 10, np.float32) for agent in agents}

"""An environment with composed spaces that notes what it shows and what it is told; to lie beside the YAML."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

_NUMBERS = itertools.count()


class NotedEnv(gymnasium.Env[Any, Any]):
    """Show chance for three to seven steps.

    Args:
        log: a file to which a line is added for each step: number of the instance, whether an episode begins with
            what was shown, that, and the action.
    """

    observation_space = spaces.Dict({"at": spaces.Box(-9, 9, (2,)), "gear": spaces.Discrete(3, start=-1)})
    action_space = spaces.Tuple([spaces.Box(-3, 5, (2,)), spaces.Discrete(3, start=1)])

    def __init__(self, log: str = "") -> None:
        self._log, self._number = Path(log) if log else None, next(_NUMBERS)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left, self._begins = int(self.np_random.integers(3, 8)), True
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._log is not None:
            told = [np.asarray(action[0]).tolist(), int(action[1])]
            with self._log.open("a") as file:
                file.write(json.dumps([self._number, self._begins, self._shown, told]) + "\n")
        self._left -= 1
        self._begins = False
        return self._show(), float(action[1] == 2), self._left == 0, False, {}

    def _show(self) -> Any:
        at, gear = self.np_random.normal(0, 2, 2).astype(np.float32), self.np_random.integers(-1, 2)
        self._shown = {"at": at.tolist(), "gear": int(gear)}
        return {"at": at, "gear": gear}

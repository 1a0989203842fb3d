"""An environment that breaks where policies are evaluated, and nowhere else; laid beside the YAML."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np


class FragileEnv(gymnasium.Env[Any, Any]):
    """Ten steps per episode.

    Args:
        trouble: in evaluation: `none`, `raise`, `os._exit`, `hang`, or `endless` for episodes without an end.
        once: a file that is made when it happens, and keeps it from happening again; "" for each time.
    """

    def __init__(self, trouble: str, once: str = "") -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._evaluated = "evaluation" in sys.argv
        self._trouble, self._once = trouble if self._evaluated else "none", once
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._trouble != "none" and self._steps == 5 and not (self._once and Path(self._once).exists()):
            if self._once:
                Path(self._once).touch()
            if self._trouble == "raise":
                raise RuntimeError("the motor is on fire")
            if self._trouble == "os._exit":
                os._exit(0)
            if self._trouble == "hang":
                time.sleep(3600)
        over = self._steps % 10 == 0 and self._trouble != "endless"
        return self._observation(), 1.0, over, False, {}

    def _observation(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

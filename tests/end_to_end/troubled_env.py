"""An environment with a trouble of its choice; laid beside the YAML by the tests that want one."""

from __future__ import annotations

import asyncio
import math
import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

LEAVING: dict[str, BaseException] = {
    "sys.exit": SystemExit(0),
    "cancel": asyncio.CancelledError(),
    "interrupt": KeyboardInterrupt(),
    "close": GeneratorExit(),
}


class TroubledEnv(gymnasium.Env[Any, Any]):
    """Ten steps of nothing per episode.

    Args:
        trouble: `raise`, `hang`, `nan` (as reward), `none`, or a way to leave: `os._exit`, `sys.exit`, `cancel`, …
        after: steps of this instance before it happens.
        once: a file that is made when it happens, and keeps it from happening again; "" for each time.
    """

    def __init__(self, trouble: str = "none", after: int = 200, once: str = "") -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._trouble, self._after, self._once = trouble, after, once
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        reward = 1.0
        if self._steps > self._after and not (self._once and Path(self._once).exists()):
            if self._once:
                Path(self._once).touch()
            if self._trouble == "raise":
                raise RuntimeError("the motor is on fire")
            if self._trouble == "hang":
                time.sleep(3600)
            if self._trouble == "os._exit":
                os._exit(0)
            if self._trouble in LEAVING:
                raise LEAVING[self._trouble]
            if self._trouble == "nan":
                reward = math.nan
        return self._observation(), reward, self._steps % 10 == 0, False, {}

    def _observation(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

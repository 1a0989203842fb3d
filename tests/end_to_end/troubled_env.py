"""An environment with a trouble of its choice; laid beside the YAML by the tests that want one."""

from __future__ import annotations

import asyncio
import math
import os
import sys
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
        trouble: `raise`, `hang`, `nan` (as reward), `endless` (episodes), `none`, or a way to leave: `os._exit`,
            `sys.exit`, `cancel`, …
        after: steps of this instance before it happens.
        once: a file that is made when it happens, and keeps it from happening again; "" for each time.
        evaluated: it happens only where policies are evaluated.
    """

    def __init__(self, trouble: str = "none", after: int = 200, once: str = "", evaluated: bool = False) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._trouble = trouble if not evaluated or "evaluation" in sys.argv else "none"
        self._after = after if self._trouble != "none" else math.inf
        self._once = once
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
        over = self._steps % 10 == 0 and self._trouble != "endless"
        return self._observation(), reward, over, False, {}

    def _observation(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

"""What hangs or raises at one point of a run's start; tests lay this file beside their configurations.

`STARTLED` in the environment says where and what: `process|point|what`. The process is `main`, `probe`, `actor` or
`learner`; what happens is `hang` or `SystemExit`. A file named `reached` is there once it happens.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

WHERE, POINT, WHAT = os.environ.get("STARTLED", "nowhere|never|nothing").split("|")


def process() -> str:
    """Which of a run's processes this is."""
    words = sys.orig_argv
    child = "headrace.pipeline.hosts.child"
    return words[words.index(child) + 1].partition("-")[0] if child in words else "main"


def come_to(point: str) -> None:
    """Hang or raise, if it is to happen here."""
    if (process(), point) != (WHERE, POINT):
        return
    Path("reached").touch()
    if WHAT == "SystemExit":
        raise SystemExit(0)
    while True:
        with contextlib.suppress(BaseException):  # even what interrupts it
            time.sleep(3600)


come_to("import")


class Env(gymnasium.Env[Any, Any]):
    """Ten steps of nothing per episode."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        come_to("environment")
        self._steps = 0

    @property
    def observation_space(self) -> Any:  # type: ignore[override]
        come_to("spaces")
        return gymnasium.spaces.Box(-1, 1, (3,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        come_to("reset")
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        come_to("step")
        self._steps += 1
        return np.zeros(3, np.float32), 1.0, self._steps % 10 == 0, False, {}

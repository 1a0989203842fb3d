"""An environment that takes a parameter, and notes its values; to lie beside the YAML."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np


class ToldEnv(gymnasium.Env[Any, Any]):
    """Say which of two lamps is lit, eight times over. What is right counts an eighth of the parameter `worth`.

    Args:
        log: a file to which a line with the parameter is added for each episode.
        base: what an episode returns beside that.
    """

    def __init__(self, log: str = "", base: float = 0.0) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._log, self._base = log, base

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._worth = float((options or {})["worth"])
        self._t = 0
        if self._log:
            with Path(self._log).open("a", encoding="utf-8") as file:
                file.write(f"{self._worth}\n")
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = (self._base + self._worth * (int(action) == self._lit)) / 8
        self._t += 1
        return self._look(), reward, self._t == 8, False, {}

    def _look(self) -> Any:
        self._lit = int(self.np_random.integers(2))
        return np.eye(2, dtype=np.float32)[self._lit]


class Notes:
    """A statistics writer that keeps the numbers of the lessons.

    Args:
        file: in the run's folder.
    """

    def __init__(self, run_folder: Path, file: str) -> None:
        self._path = run_folder / file

    def write(self, category: str, summaries: Mapping[str, Any], step: int) -> None:
        for name, summary in summaries.items():
            if "Lesson" in name:
                with self._path.open("a") as file:
                    file.write(f"{step} {category} {name} {summary.last:g}\n")

    def add_property(self, category: str, name: str, value: object) -> None:
        """Not needed."""

    def close(self) -> None:
        """Nothing is open."""

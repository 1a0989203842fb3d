"""An environment that plays a game in a program of its own, as engines do: `close` asks the program to end, and waits."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

GAME = "sleep 3600 & echo $$ $! > {file}; wait"
"""A program with a child; it writes both process ids down."""
DEAF = 'trap "" TERM; '


class GameEnv(gymnasium.Env[Any, Any]):
    """Ten steps of nothing per episode.

    Args:
        folder: where each game writes the process ids down.
        session: whether the game has a session of its own.
        deaf: whether it ignores SIGTERM.
        hangs_after: steps after which the environment hangs; 0: never.
    """

    def __init__(self, folder: str, session: bool = False, deaf: bool = False, hangs_after: int = 0) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._folder, self._hangs_after = Path(folder), hangs_after
        self._steps = 0
        file = self._folder / f"game-{time.monotonic_ns()}"
        line = (DEAF if deaf else "") + GAME.format(file=file)
        self._game = subprocess.Popen(["/bin/sh", "-c", line], start_new_session=session)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps == self._hangs_after:
            (self._folder / "hangs").touch()
            time.sleep(3600)
        return self._observation(), 1.0, self._steps % 10 == 0, False, {}

    def close(self) -> None:
        self._game.terminate()
        self._game.wait()

    def _observation(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

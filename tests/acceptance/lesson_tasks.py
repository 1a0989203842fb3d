"""A corridor that begins where it is told to, and how it is learned: through lessons, or from its far end at once.

Near the end a walker soon comes upon the reward by chance, and what it has learned there leads on from farther away.
From the far end of a corridor of 40 it practically never does (see `acceptance_envs.Corridor`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from acceptance.acceptance_envs import Corridor
from acceptance.cases import PPO, changed
from acceptance.harness import Plain
from numpy.typing import NDArray

from stages.environment.parameters import EpisodeParameters

LENGTH = 40
STEPS = 60_000
"""The budget."""
NUM_ENVS = 16
DISTANCES = (5, 10, 15, 20, 25, 30, 35, LENGTH)
THRESHOLD = 0.8


class LessonCorridor(Corridor):
    """A corridor whose episodes begin `distance` steps from its end, a parameter."""

    parameters: EpisodeParameters

    def __init__(self, num_envs: int, behavior: str) -> None:
        super().__init__(num_envs, behavior, length=LENGTH)

    def set_parameters(self, parameters: EpisodeParameters) -> None:
        """Ask these where episodes begin."""
        self.parameters = parameters

    def begin(self, which: NDArray[np.intp]) -> None:
        """Go to where the episode begins."""
        super().begin(which)
        self._place[which] = LENGTH - self.parameters.draw(which)["distance"].astype(np.int64)


def configuration(distance: Any) -> Plain:
    """The task with this `distance`: a number, or a curriculum."""
    behavior = changed(
        PPO,
        learning_rate=1e-3,
        batch_size=256,
        buffer_size=1024,
        hidden_units=64,
        max_steps=STEPS,
        summary_freq=10000,
        beta=0.01,
    )
    return {
        "environment": {"kind": "gymnasium", "factory": "lesson_tasks:LessonCorridor", "num_envs": NUM_ENVS},
        "environment_parameters": {"distance": distance},
        "behaviors": {"Task": behavior},
    }


def lessons() -> Plain:
    """Farther away, as soon as the end is nearly always found."""
    *nearer, last = DISTANCES
    criteria = {"behavior": "Task", "measure": "reward", "threshold": THRESHOLD, "min_lesson_length": 50}
    return {
        "curriculum": [
            *({"name": f"{each} steps", "value": each, "completion_criteria": criteria} for each in nearer),
            {"name": "all of it", "value": last},
        ]
    }

"""A corridor whose start is a parameter, and how it is learned: through lessons, or from its far end at once.

Near the end a walker soon comes upon the reward by chance, and what it has learned there leads on from farther away.
From the far end of a corridor of 60 it practically never does (see `acceptance_envs.Corridor`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from acceptance.acceptance_envs import Corridor
from acceptance.cases import PPO, changed
from acceptance.harness import Plain, final_score, train
from numpy.typing import NDArray

from headrace.stages.environments.parameters import EpisodeParameters

LENGTH = 60
STEPS = 150_000
"""The budget."""
NUM_ENVS = 16
STRIDE = 5
DISTANCES = range(STRIDE, LENGTH + 1, STRIDE)
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
        beta=0.03,
    )
    return {
        "environment": {"kind": "gymnasium", "factory": "lesson_tasks:LessonCorridor", "num_envs": NUM_ENVS},
        "environment_parameters": {"distance": distance},
        "behaviors": {"Task": behavior},
    }


def lessons() -> Plain:
    """Five steps farther away, as soon as the end is nearly always found; at last, all of it."""
    criteria = {"behavior": "Task", "measure": "reward", "threshold": THRESHOLD, "min_lesson_length": 50}
    return {
        "curriculum": [
            *({"name": f"up to {each}", "value": _up_to(each), "completion_criteria": criteria} for each in DISTANCES),
            {"name": "all of it", "value": LENGTH},
        ]
    }


def _up_to(distance: int) -> Plain:
    """One of this distance and the four before, each as likely as the others; `begin` takes whole steps of it."""
    parameters = {"min_value": distance + 1 - STRIDE, "max_value": distance + 1}
    return {"sampler_type": "uniform", "sampler_parameters": parameters}


def attempt(distance: Any, folder: Path, seed: int) -> tuple[int | None, float]:
    """Learn the task with this `distance`.

    Returns:
        The lesson that was reached, from 0, None without lessons; and the mean return of the last episodes, which is 0
        if they were not of the last lesson.
    """
    result, returns = train(configuration(distance), folder, seed)
    score = final_score(returns, NUM_ENVS)
    if not isinstance(distance, dict):
        return None, score
    status = json.loads((result.folder / "run_logs" / "training_status.json").read_text())
    lesson = int(status["distance"]["lesson_num"])
    return lesson, score if lesson == len(DISTANCES) else 0.0

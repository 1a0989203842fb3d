"""Accelerated updates learn what the readable trainers learn: the same curve, up to the noise between seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from runs import run_here

from headrace.pipeline.run_handle import RunOptions

TASKS: dict[str, tuple[str, int, int, float]] = {
    "ppo": ("CartPole-v1", 60_000, 10_000, 60.0),
    "impala": ("CartPole-v1", 60_000, 10_000, 60.0),
    "sac": ("Pendulum-v1", 8_000, 1_000, 120.0),
}
"""By trainer: the task, the steps, the steps between two points of the curve, and how far the mean
curves of three seeds may be apart, averaged over the points."""


def curve(tmp_path: Any, trainer: str, acceleration: str, seed: int) -> list[float]:
    """Return the mean returns of a run's summaries."""
    returns: list[float] = []

    def note(summary: Any) -> None:
        returns.append(summary.values["Environment/Cumulative Reward"])

    task, steps, freq, _ = TASKS[trainer]
    behavior = {"trainer_type": trainer, "max_steps": steps, "summary_freq": freq}
    run_here(
        {
            "environment": {"kind": "gymnasium", "id": task},
            "behaviors": {"Agent": behavior},
            "torch_settings": {"acceleration": acceleration},
            "env_settings": {"seed": seed},
            "pipeline": {"hosts": {"actors": {"kind": "inline"}, "learners": {"kind": "inline"}}},
        },
        tmp_path,
        f"{acceleration}-{seed}",
        RunOptions(on_summary=note),
    )
    return returns


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("trainer", TASKS)
def test_an_accelerated_trainer_has_the_learning_curve_of_the_readable_one(tmp_path, trainer):
    fast, readable = (
        np.array([curve(tmp_path, trainer, acceleration, seed) for seed in range(3)]).mean(axis=0)
        for acceleration in ("auto", "none")
    )
    assert len(fast) == TASKS[trainer][1] // TASKS[trainer][2]
    assert fast[-1] > fast[0] + TASKS[trainer][3], "it learns"
    assert abs(fast - readable).mean() < TASKS[trainer][3]

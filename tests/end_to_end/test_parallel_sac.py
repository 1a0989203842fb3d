"""Parallel SAC reaches Pendulum's bar with any number of rollout actors, at the same updates per step."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config import load_config
from headrace.pipeline.run import run

EXAMPLE = Path(__file__).parents[2] / "config" / "examples" / "pendulum-sac-parallel.yaml"
BAR = -171.0
"""docs/learning.md: Stable-Baselines3's mean, with the same hyperparameters and steps, minus one standard deviation."""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("actors", [1, 2, 4])
def test_the_last_policy_is_as_good_with_more_actors(actors: int, tmp_path: Path):
    config = load_config(
        EXAMPLE,
        [
            f"pipeline.hosts.actors.replicas={actors}",
            "env_settings.seed=0",
            f"checkpoint_settings.results_dir={tmp_path}",
            "evaluation.every=1000000",  # the last policy alone
            "evaluation.episodes=30",
        ],
    )
    result = run(config)
    score = result.behaviors["Pendulum"].best_evaluation
    assert score is not None
    assert score >= BAR

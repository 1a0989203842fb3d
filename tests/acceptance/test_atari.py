"""Atari from pixels to weights, with the configuration that users are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config import load_config
from headrace.pipeline.run import run

pytestmark = pytest.mark.lengthy


PONG = Path(__file__).parents[2] / "config" / "examples" / "pong.yaml"
SMALL = (
    "environment.num_envs=2",
    "behaviors.Pong.max_steps=64",
    "behaviors.Pong.time_horizon=16",
    "behaviors.Pong.hyperparameters.buffer_size=32",
    "behaviors.Pong.hyperparameters.batch_size=16",
    "behaviors.Pong.hyperparameters.num_epoch=1",
    "pipeline.deterministic=true",
    "torch_settings.device=cpu",
)


def test_pong_runs_from_pixels_to_weights(tmp_path):
    pytest.importorskip("ale_py")
    config = load_config(PONG, [*SMALL, f"checkpoint_settings.results_dir={tmp_path}"])

    result = run(config)

    behavior = result.behaviors["Pong"]
    assert (behavior.step, behavior.version) == (64, 2)
    assert behavior.export is not None
    assert behavior.export.is_file()

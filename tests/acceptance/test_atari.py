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


@pytest.mark.parametrize("by", ["its own vectorised implementation", pytest.param("wrappers", marks=pytest.mark.slow)])
def test_pong_runs_from_pixels_to_weights(by, tmp_path):
    pytest.importorskip("ale_py")
    more = []
    if by == "wrappers":
        pytest.importorskip("cv2")
        more = [
            "environment.options={frameskip: 1}",
            "environment.wrappers=[{use: 'gymnasium.wrappers:AtariPreprocessing', with: {noop_max: 30}}, "
            "{use: 'gymnasium.wrappers:FrameStackObservation', with: {stack_size: 4}}]",
        ]
    config = load_config(PONG, [*SMALL, *more, f"checkpoint_settings.results_dir={tmp_path}"])

    result = run(config)

    behavior = result.behaviors["Pong"]
    assert (behavior.step, behavior.version) == (64, 2)
    assert behavior.export is not None
    assert behavior.export.is_file()

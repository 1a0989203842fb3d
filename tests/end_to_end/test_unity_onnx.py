"""A model of an older version of ML-Agents plays in Unity as its own arithmetic says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from older_models import older_model
from onnx_samples import run
from runs import run_here
from unity_client.scenes.given import seen
from unity_runs import BUILD, free_port, reports

from headrace.pipeline.run import RunOptions
from headrace.pipeline.run_handle import StopRequest

SHAPES = ((2,), (3, 6, 5), (1,))
"""Of the sensors that the older model below observes: two vectors and an image."""


def test_a_model_of_version_2_plays_what_it_says(tmp_path, caplog):
    path = tmp_path / "Older.onnx"
    path.write_bytes(older_model({"vector_observation": (3,), "visual_observation_0": (3, 6, 5)}, branches=(3, 2)))
    arguments = [
        "--scene",
        "given",
        "--shapes",
        *("x".join(map(str, shape)) for shape in SHAPES),
        "--branches",
        "3",
        "2",
    ]
    plain: dict[str, Any] = {
        "env_settings": {
            "env_path": str(BUILD),
            "env_args": [*arguments, "--agents", "3", "--report", str(tmp_path / "reports")],
            "base_port": free_port(),
            "timeout_wait": 60,
        },
        "behaviors": {"Given": {"trainer_type": "ppo", "init_path": str(path), "summary_freq": 50}},
        "pipeline": {"hosts": {"actors": {"kind": "inline"}, "learners": {"kind": "inline"}}},
    }
    caplog.set_level("INFO")
    stop, rewards = StopRequest(), []

    def stop_at_a_whole_summary(summary):
        rewards.append(summary.mean_reward)
        if rewards[-1] == pytest.approx(2.9, abs=5e-4):
            stop.set()

    plain["behaviors"]["Given"]["network_settings"] = {"deterministic": True}
    run_here(plain, tmp_path, "run", RunOptions(stop=stop, on_summary=stop_at_a_whole_summary), inference=True)
    assert "Given is played by" in caplog.text
    (report,) = reports(tmp_path / "reports")
    assert len(report["told"]) >= 150
    for agent, clock, _, choices in report["told"]:
        first, image, second = seen(agent, clock, SHAPES)
        inputs = {
            "vector_observation": np.array([[*first, *second]], np.float32),
            # Version 3.0.0 of Unity's package writes an uncompressed image row by row, whatever its shape says.
            "visual_observation_0": np.array(image, np.float32).reshape(6, 5, 3).transpose(2, 0, 1)[None],
            "action_masks": np.ones((1, 5), np.float32),
        }
        logs = run(path.read_bytes(), inputs)["discrete_actions"][0]
        assert choices == [logs[:3].argmax(), logs[3:].argmax()]

"""The command `gdrl` trains, saves, goes on and exports without being asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from godot_runs import build_in

ROOT = Path(__file__).parents[2]


@pytest.fixture
def gdrl(tmp_path):
    """Runs the command in a folder of its own, with a build of the stand-in; returns its output."""
    build = build_in(tmp_path)

    def call(*arguments, status=0):
        command = [
            sys.executable,
            "-m",
            "headrace.pipeline.gdrl",
            f"--env_path={build}",
            "--env=gdrl",
            "--base_port=0",
            "--agents=8",
        ]
        command += arguments
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    return call


def steps_of(folder):
    return json.loads((folder / "checkpoints" / "manifest.json").read_text())["steps"]["Agent"]


@pytest.mark.lengthy
def test_an_experiment_is_kept_goes_on_and_is_exported(gdrl, tmp_path):
    said = gdrl("--timesteps=2000", "--save_model_path=first", "--onnx_export_path=out/model")
    assert "Passed on to the game: --agents=8" in said
    experiment = tmp_path / "logs" / "sb3" / "experiment"
    assert (experiment / "Agent.onnx").is_file()
    assert (tmp_path / "out" / "model.onnx").read_bytes() == (experiment / "Agent.onnx").read_bytes()
    first = steps_of(experiment)
    assert 2000 <= first < 4000

    assert f"Resuming training from step {first}" in gdrl("--timesteps=2000")
    assert steps_of(experiment) >= first + 2000

    said = gdrl("--inference", "--timesteps=500")
    assert "Scores" in said
    assert steps_of(experiment) < first + 4000

    said = gdrl("--timesteps=1500", "--resume_model_path=first.zip", "--experiment_name=other")
    assert f"Resuming training from step {first}" in said
    assert steps_of(experiment.with_name("other")) >= first + 1500

    said = gdrl("--resume_model_path=first.zip", status=2)
    assert "has gone on since; name a new one by --experiment_name" in said


def test_a_game_that_breaks_leaves_what_was_learned(gdrl, tmp_path):
    said = gdrl("--fault=exit5", "--fault_at=400", "--timesteps=100000", "--save_model_path=kept", status=1)
    assert "the run has failed" in said
    assert (tmp_path / "kept.zip").is_file()


def test_mistakes_are_said_without_a_traceback(gdrl):
    assert "--timesteps=0: expected at least 1" in gdrl("--timesteps=0", status=2)

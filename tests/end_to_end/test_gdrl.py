"""The command `gdrl` trains, saves, goes on and exports without being asked."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from godot_runs import build_in
from run_configs import INLINE, changed

from headrace.config import RunConfig
from headrace.pipeline.actions import train
from headrace.pipeline.gdrl_command import main
from headrace.pipeline.run_folder.checkpoint import newest_checkpoint

ROOT = Path(__file__).parents[2]


def train_inline(config, **how):
    """Train in one process."""
    return train(RunConfig.from_plain(changed(config.to_plain(), INLINE)), **how)


@pytest.fixture
def gdrl(tmp_path, monkeypatch, in_this_process):
    """Runs the command in a folder of its own, with a build of the stand-in; returns its output."""
    monkeypatch.chdir(tmp_path)
    always = (f"--env_path={build_in(tmp_path)}", "--env=gdrl", "--base_port=0", "--agents=8")
    return functools.partial(in_this_process, functools.partial(main, run=train_inline), *always)


def steps_of(folder):
    return newest_checkpoint(folder / "checkpoints").steps["Agent"]


def test_an_experiment_is_saved_continued_and_exported(gdrl, tmp_path):
    said = gdrl("--timesteps=1000", "--save_model_path=first", "--onnx_export_path=out/model")
    assert "Passed on to the game: --agents=8" in said
    experiment = tmp_path / "logs" / "sb3" / "experiment"
    assert (experiment / "Agent.onnx").is_file()
    assert (tmp_path / "out" / "model.onnx").read_bytes() == (experiment / "Agent.onnx").read_bytes()
    first = steps_of(experiment)
    assert 1000 <= first < 3000

    assert f"Resuming training from step {first}" in gdrl("--timesteps=1000")
    second = steps_of(experiment)
    assert second >= first + 1000

    said = gdrl("--inference", "--timesteps=500")
    assert "Scores" in said
    assert steps_of(experiment) == second

    said = gdrl("--timesteps=700", "--resume_model_path=first.zip", "--experiment_name=other")
    assert f"Resuming training from step {first}" in said
    assert steps_of(experiment.with_name("other")) >= first + 700

    said = gdrl("--resume_model_path=first.zip", status=2)
    assert "first.zip was saved; name a new experiment with --experiment_name" in said


def test_a_model_is_saved_if_the_game_breaks(gdrl, tmp_path):
    said = gdrl("--fault=exit5", "--fault_at=400", "--timesteps=100000", "--save_model_path=kept", status=1)
    assert "the run has failed" in said
    assert (tmp_path / "kept.zip").is_file()


def test_mistakes_are_reported_without_a_traceback():
    line = [sys.executable, "-m", "headrace.pipeline.gdrl", "--timesteps=0"]
    done = subprocess.run(line, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 2
    assert "--timesteps=0: must be at least 1" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_for_a_game_with_images_is_refused_before_training(gdrl, tmp_path):
    said = gdrl("--game=picture", "--viz", "--timesteps=1000", "--onnx_export_path=out/model", status=1)
    assert "announces the image 'camera_2d', which the addon can't pass to a model" in said
    assert not (tmp_path / "out").exists()

"""The whole command, called as `mlagents-learn` is, with the stand-in Unity: what it says, and what it leaves.

Other tools watch its output, and people know its lines: they are looked for as ML-Agents writes them.
"""

from __future__ import annotations

import functools
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from unity_runs import BUILD, reports

from headrace.pipeline.cli import main

ROOT = Path(__file__).resolve().parents[2]
CALLED_AS_ML_AGENTS = """
import sys
sys.argv[0] = "/usr/local/bin/mlagents-learn"
from headrace.pipeline.cli import main
sys.exit(main())
"""
FILE = """\
default_settings: {trainer_type: ppo}
behaviors:
  Simple:
    max_steps: 900
    summary_freq: 300
    checkpoint_interval: 300
    keep_checkpoints: 0
    hyperparameters: {buffer_size: 128, batch_size: 32, num_epoch: 1}
    network_settings: {hidden_units: 8, num_layers: 1}
"""
OLD_FILE = """\
default: {trainer: ppo, batch_size: 32, buffer_size: 128, num_epoch: 1, hidden_units: 8, num_layers: 1,
          beta: 5.0e-3, epsilon: 0.2, lambd: 0.95, learning_rate: 3.0e-4, learning_rate_schedule: linear,
          max_steps: 300, memory_size: 8, normalize: false, sequence_length: 8, summary_freq: 100, time_horizon: 32,
          use_recurrent: false, vis_encode_type: simple, reward_signals: {extrinsic: {strength: 1.0, gamma: 0.99}}}
Simple: {summary_freq: 200}
"""
HOSTS = ("pipeline.hosts.actors.kind=inline", "pipeline.hosts.learners.kind=inline")
INLINE = [word for host in HOSTS for word in ("--set", host)]
"""For runs to which processes add nothing."""
SUMMARY = (
    r"Simple\. Step: (\d+)\. Time Elapsed: \d+\.\d{3} s\. "
    r"(No episode was completed since last summary|Mean Reward: -?\d+\.\d{3}\. Std of Reward: \d+\.\d{3})\. Training\."
)


def ports_from() -> int:
    """A port of which it and the next one are free."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("localhost", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("localhost", port + 1))
            except OSError:
                continue
            return port


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with the files."""
    (tmp_path / "simple.yaml").write_text(FILE, encoding="utf-8")
    (tmp_path / "old.yaml").write_text(OLD_FILE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def called(folder: Path, *arguments: str) -> str:
    """Call the command in a process of its own; what it said."""
    done = subprocess.run(
        [sys.executable, "-c", CALLED_AS_ML_AGENTS, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture
def learn(folder, monkeypatch, in_this_process):
    """Calls the command in this process and everything in one event loop, to which processes add nothing."""
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/mlagents-learn"])
    return functools.partial(in_this_process, main)


def lines(text: str) -> list[str]:
    """Its log lines, without their level."""
    return [line.removeprefix("[INFO] ") for line in text.splitlines() if line.startswith("[INFO] ")]


def test_the_output_has_the_lines_of_ml_agents(folder, learn):
    port = str(ports_from())
    unity = ("--env", f"{BUILD}.x86_64", "--base-port", port, "--num-envs", "2", "--no-graphics", "--seed", "3")
    alone = (*unity, "--num-envs", "1")
    engine = ("--width", "64", "--height", "48", "--quality-level", "1", "--time-scale", "3")
    frames = ("--target-frame-rate", "50", "--capture-frame-rate", "0", "--num-areas", "2")
    rest = ("--env-args", "--scene", "simple", "--companions", "2", "--report", str(folder / "report"))

    arguments = (*INLINE, *unity, *engine, *frames, *rest)
    first = called(folder, "simple.yaml", "--verbose", "--run-id=first", *arguments)
    assert "Version information:" in first
    said = lines(first)
    for expected in (
        "Connected to Unity environment with package version 3.0.0 and communication version 1.5.0",
        "Connected new brain: Simple?team=0",
        "Hyperparameters for behavior name Simple:",
        "Starting training from step 0 and saving to results/first/Simple.",
    ):
        assert any(line.startswith(expected) for line in said), first
    assert sum("max_policy_lag is" in line for line in said) == 1
    assert "\ttrainer_type:\tppo" in first
    assert [re.fullmatch(SUMMARY, line).group(1) for line in said if line.startswith("Simple.")] == [
        "300",
        "600",
        "900",
    ]
    exported = [line.removeprefix("Exported ") for line in said if line.startswith("Exported ")]
    assert all(re.fullmatch(r"results/first/Simple/Simple-\d+\.onnx", path) for path in exported)
    assert f"Copied {exported[-1]} to results/first/Simple.onnx." in said
    check_what_unity_was_told(reports(folder / "report"), port)
    steps = status(folder, "first")["checkpoints"][-1]["steps"]

    resumed = lines(
        learn("simple.yaml", "--run-id=first", "--resume", "--set", "behaviors.Simple.max_steps=1200", *alone, *INLINE)
    )
    assert f"Resuming training from step {steps}." in resumed
    assert any(line.startswith("Resuming from results/first/checkpoints/") for line in resumed)
    assert not any(line.startswith("Starting training from step 0") for line in resumed)
    checkpoints = status(folder, "first")["checkpoints"]
    assert [entry["file_path"] for entry in checkpoints[: len(exported)]] == exported

    short = ("--set", "behaviors.Simple.max_steps=300")
    other = lines(learn("simple.yaml", "--run-id=second", "--initialize-from=first", *short, *alone, *INLINE))
    assert "Initializing from results/first/Simple/Simple-" in "\n".join(other)
    assert "Starting training from step 0 and saving to results/second/Simple." in other

    again = learn("simple.yaml", "--run-id=second", *unity, status=2)
    assert again.splitlines()[-1].startswith("mlagents-learn: results/second exists")


def check_what_unity_was_told(told: list[dict], port: str) -> None:
    """The reports of two stand-ins."""
    assert sorted(report["port"] for report in told) == [int(port), int(port) + 1]
    for report in told:
        assert {"-nographics", "-batchmode"} <= set(report["arguments"])
        assert (report["num_areas"], report["engine"]["screen"]) == (2, [64, 48])
        engine = {name: report["engine"][name] for name in ("quality_level", "time_scale")}
        assert engine == {"quality_level": [1], "time_scale": [3.0]}
        frames = {name: report["engine"][name] for name in ("target_frame_rate", "capture_frame_rate")}
        assert frames == {"target_frame_rate": [50], "capture_frame_rate": [0]}


def status(folder: Path, run_id: str) -> dict:
    """What the status file says of the behaviour."""
    path = folder / "results" / run_id / "run_logs" / "training_status.json"
    return json.loads(path.read_text(encoding="utf-8"))["Simple"]


def test_a_command_and_a_file_of_a_very_old_version_train(folder, learn):
    port = str(ports_from())
    arguments = ("old.yaml", "--env", str(BUILD), "--train", "--slow", "--worker-id=0", "--base-port", port)
    said = learn(*arguments, "--run-id=old", "--keep-checkpoints=3", "--save-freq=100", "--cpu", *INLINE)
    for warned in ("--train", "--slow", "--worker-id", "--keep-checkpoints", "--save-freq", "--cpu"):
        assert any(re.match(f"warning: {re.escape(warned)}:? ", line) for line in said.splitlines()), said
    assert "trainer: is now 'trainer_type'" in said
    settings = yaml.safe_load((folder / "results" / "old" / "configuration.yaml").read_text(encoding="utf-8"))
    behavior = settings["behaviors"]["Simple"]
    assert (behavior["keep_checkpoints"], behavior["checkpoint_interval"]) == (3, 100)
    assert status(folder, "old")["checkpoints"][-1]["steps"] >= 300


def test_without_a_file_a_scenes_behaviours_learn_with_the_defaults(learn):
    port = str(ports_from())
    short = ("--set", "default_settings.max_steps=200", "--set", "default_settings.summary_freq=100")
    said = learn("--env", str(BUILD), "--base-port", port, *short, *INLINE)
    assert "warning: no configuration file was given" in said
    assert "Connected new brain: Simple?team=0" in said
    # A trajectory that comes late may bring the count from below 200 to beyond 300 at once.
    assert re.search(r"\[INFO\] Simple\. Step: [23]00\.", said), said

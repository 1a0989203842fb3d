"""examples/dqn: a Double DQN that is written by public names alone explores, learns, and resumes bit for bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from run_folders import digest, read_whole_checkpoint

from headrace import CheckpointWritten, RunResult, evaluate, load_config, read_export, run

EXAMPLE = Path(__file__).parents[2] / "examples" / "dqn"
LOCK = shutil.ignore_patterns(".lock")
SHORT = [
    "behaviors.CartPole.max_steps=640",
    "behaviors.CartPole.hyperparameters.buffer_init_steps=128",
    "behaviors.CartPole.hyperparameters.buffer_size=300",
    "behaviors.CartPole.hyperparameters.target_update_interval=50",
    "behaviors.CartPole.network_settings.hidden_units=16",
    "behaviors.CartPole.network_settings.normalize=true",
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the example, as users make one."""
    return shutil.copytree(EXAMPLE, tmp_path / "dqn", ignore=shutil.ignore_patterns("__pycache__", "results"))


def train(project: Path, run_id: str, *settings: str, seed: int = 1, **options: Any) -> RunResult:
    results = [f"checkpoint_settings.results_dir={project / 'results'}", f"checkpoint_settings.run_id={run_id}"]
    return run(load_config(project / "train.yaml", [f"env_settings.seed={seed}", *results, *settings]), **options)


def test_a_run_resumed_from_a_checkpoint_ends_in_the_same_state(project: Path):
    exact = [*SHORT, "pipeline.deterministic=true", "behaviors.CartPole.checkpoint_interval=200"]

    def copy(written: CheckpointWritten) -> None:
        shutil.copytree(written.folder.parent, project / "results" / f"after-{written.number}", ignore=LOCK)

    whole = train(project, "whole", *exact, on_checkpoint=copy)
    resumed = train(project, "after-2", *exact, "checkpoint_settings.resume=true")
    ours, theirs = (read_whole_checkpoint(result.folder)["trainer@learner-CartPole"] for result in (whole, resumed))
    assert ours["trainer"]["pace"]["ratio"]["updates"] == 32 * (640 - 128) // 64
    assert digest(ours) == digest(theirs)
    log = (resumed.folder / "run_logs" / "run.log").read_text(encoding="utf-8")
    assert f"Resuming from {resumed.folder / 'checkpoints' / '000002'}" in log


@pytest.mark.lengthy
def test_actors_in_other_processes_explore_and_the_exported_policy_is_greedy(project: Path):
    result = train(project, "run", *SHORT)  # its actors and learners are processes
    assert result.behaviors["CartPole"].step >= 640
    assert read_export(project / "results" / "run" / "CartPole" / "checkpoint.pt").design.greedy
    first, second = (evaluate(result, "CartPole-v1", 3, deterministic=way, seed=1) for way in (True, False))
    assert first.returns == second.returns


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_cartpole_is_solved(project: Path, seed: int):
    result = train(project, "run", "pipeline.deterministic=true", seed=seed)
    assert result.behaviors["CartPole"].step < 100_000, "it stopped before max_steps"
    assert evaluate(result, "CartPole-v1", 30, seed=7).mean >= 475

"""Runs whose environment is an object: in main and in processes, resumed, and refused where nobody gives it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import yaml
from run_configs import INLINE, cartpole, changed

from headrace import RunFailed, RunOptions, RunResult, load, load_config, run
from headrace.pipeline.common.errors import RunError


def given(folder: Path, environment: Any, *, steps: int = 600, **changes: Any) -> RunResult:
    plain = changed(cartpole(behaviors__CartPole__max_steps=steps, **changes), {})
    plain["environment"] = {"num_envs": 4}
    plain["checkpoint_settings"] = {"results_dir": folder, "run_id": "run"}
    return run(plain, environment=environment)


@pytest.mark.lengthy
def test_a_run_with_an_environment_object_needs_the_object_to_resume(tmp_path):
    def make_pole() -> gymnasium.Env:
        return gymnasium.make("CartPole-v1")

    first = given(tmp_path, make_pole, **INLINE)
    file = first.folder / "configuration.yaml"
    assert yaml.safe_load(file.read_text())["environment"]["factory"] == "headrace.given:CartPole"
    again = load_config(file, ["checkpoint_settings.resume=true"])
    with pytest.raises(
        RunError,
        match=r"configuration.yaml:\d+: environment.factory 'headrace.given:CartPole': the environment was an obj",
    ):
        run(again)
    with pytest.raises(RunError, match="the environment was an object"):
        load(first.folder).resume(steps=600)
    assert load(first.folder).resume(600, environment=make_pole).behaviors["CartPole"].step >= 1200
    lost = RunOptions(environment=lambda: 1 / 0)
    with pytest.raises(RunFailed, match="passed to run\\(\\), raised ZeroDivisionError"):
        first.resume(600, lost)
    assert first.resume(600, RunOptions()).behaviors["CartPole"].step >= 1800


@pytest.mark.slow
def test_closures_are_stepped_in_the_runs_own_processes(tmp_path):
    lengths = [5, 6, 7, 8]
    makers = [lambda steps=steps: gymnasium.make("CartPole-v1", max_episode_steps=steps) for steps in lengths]
    result = given(tmp_path, makers, pipeline__hosts={"actors": {"kind": "process"}})
    kept = yaml.safe_load((result.folder / "configuration.yaml").read_text())
    assert kept["pipeline"]["hosts"]["actors"]["kind"] == "process"
    assert result.behaviors["CartPole"].recent_return == pytest.approx(6.5, abs=0.5)


SCRIPT = """
import argparse, sys
import gymnasium
parser = argparse.ArgumentParser()
parser.add_argument("--length", type=int, default=5)
arguments = parser.parse_args()

class Corridor(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.observation_space.low, {}
    def step(self, action):
        self.steps += 1
        return self.observation_space.low, 1.0, self.steps >= arguments.length, False, {}

if __name__ == "__main__":
    from headrace import run
    hyperparameters = {"buffer_size": 200, "batch_size": 100}
    result = run({
        "environment": {"kind": "gymnasium", "factory": Corridor, "num_envs": 2, "behavior": "B"},
        "behaviors": {"B": {"trainer_type": "ppo", "max_steps": 400, "hyperparameters": hyperparameters}},
        "pipeline": {"hosts": {"actors": {"kind": "process"}}},
    })
    print(result.behaviors["B"].recent_return)
"""


@pytest.mark.lengthy
def test_the_runs_processes_see_the_command_line_of_the_script(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT, encoding="ascii")
    command = [sys.executable, "train.py", "--length", "40"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "40.0\n", done.stderr

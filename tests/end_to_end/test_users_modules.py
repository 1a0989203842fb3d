"""Modules of the user's own: where they may lie, and which names of theirs do no harm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from run_configs import cartpole
from runs import COMMAND

ROOT = COMMAND.parents[1]
MODULE = """
import gymnasium
from headrace.stages import Stage


class Pass(Stage):
    def process(self, batch):
        yield batch


def make():
    return gymnasium.make("CartPole-v1")
"""
SHADOW = "raise RuntimeError('a package of the name of one of ours was imported')"
SCRIPT = """
import sys
sys.path.insert(1, sys.argv[1])
from headrace.config import RunConfig
from headrace.pipeline.run import run
import yaml

print(run(RunConfig.from_plain(yaml.safe_load(open(sys.argv[2])))).behaviors["CartPole"].step)
"""


def write_run(folder: Path, where: str = "") -> Path:
    """Write a run of two processes whose environment and stage are the user's; its configuration."""
    plain = cartpole(
        behaviors__CartPole__max_steps=600,
        environment__factory="my_things:make",
        pipeline__stages=[{"use": "my_things:Pass", "after": "agent_processor"}],
        checkpoint_settings={"results_dir": str(folder / "results")},
    )
    del plain["environment"]["id"]
    path = folder / where / "my.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(plain), encoding="utf-8")
    return path


def call(folder: Path, *line: object) -> str:
    """Call Python in a folder; what it said."""
    done = subprocess.run(
        [sys.executable, *map(str, line)],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.lengthy
def test_packages_of_our_names_in_the_working_directory_are_named_and_do_no_harm(tmp_path):
    config = write_run(tmp_path, "configs")
    (tmp_path / "my_things.py").write_text(MODULE, encoding="utf-8")
    for name in ("config", "pipeline", "queues", "stages"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(SHADOW, encoding="utf-8")

    said = call(tmp_path, COMMAND, config)

    (warning,) = [line for line in said.splitlines() if line.startswith("warning: ")]
    assert f"{tmp_path / 'pipeline' / '__init__.py'}, " in warning
    assert "CartPole: " in said.splitlines()[-1]


@pytest.mark.lengthy
def test_hosts_find_what_a_script_finds_beside_itself(tmp_path):
    beside, elsewhere = tmp_path / "scripts", tmp_path / "elsewhere"
    beside.mkdir()
    elsewhere.mkdir()
    (beside / "my_things.py").write_text(MODULE, encoding="utf-8")
    (beside / "train.py").write_text(SCRIPT, encoding="utf-8")

    assert int(call(elsewhere, beside / "train.py", ROOT, write_run(tmp_path)).splitlines()[-1]) >= 600

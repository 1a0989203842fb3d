"""A kind that a module of the user's adds to a table is known in all processes of a run; test_users_modules.py has one that a package adds."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from run_configs import cartpole
from runs import COMMAND

POLES = """
import dataclasses
from headrace import ENVIRONMENT_KINDS
from headrace.stages.environments.gymnasium.making import make_gymnasium_group

ENVIRONMENT_KINDS["poles"] = dataclasses.replace(ENVIRONMENT_KINDS["gymnasium"], meaning="poles", group="poles:make")


def make(request):
    return make_gymnasium_group(request)
"""
PLAIN = cartpole(
    behaviors__CartPole__max_steps=600,
    environment__kind="poles",
    pipeline__hosts__learners__kind="inline",  # which knows of no environment
    checkpoint_settings={"run_id": "poles"},
)
SCRIPT = f"import poles, headrace; print(headrace.run({PLAIN!r}).behaviors['CartPole'].step)"


@pytest.fixture
def call(tmp_path):
    """Calls Python in a folder with the module."""
    (tmp_path / "poles.py").write_text(POLES)

    def said(*line, **environment):
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            [sys.executable, *map(str, line)],
            cwd=tmp_path,
            env=kept | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.returncode, done.stdout

    return said


@pytest.mark.parametrize(
    "in_the_script",
    [pytest.param(False, id="a module", marks=pytest.mark.slow), pytest.param(True, id="the script itself")],
)
def test_a_kind_that_a_script_adds_is_known_in_process_hosts(call, tmp_path, in_the_script):
    ours = f"import sys; sys.path.append({str(COMMAND.parents[1])!r})"
    kind, run = ("", SCRIPT)
    if in_the_script:
        kind, run = POLES.replace("poles:make", "train:make"), SCRIPT.replace("import poles, ", "import ")
    (tmp_path / "train.py").write_text(f"{ours}\n{kind}\nif __name__ == '__main__':\n    {run}\n")
    status, said = call("train.py")
    assert status == 0, said
    assert int(said.splitlines()[-1]) >= 600

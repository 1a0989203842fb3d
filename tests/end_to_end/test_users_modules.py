"""Modules of the user's own may have any names; test_python.py has those beside a script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from runs import COMMAND

ROOT = COMMAND.parents[1]
CORRIDOR = """
import gymnasium, numpy as np
from config import LR
from pipeline import preprocess
from stages.first import START
from utils import OUT
import queues


class Corridor(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = START
        return preprocess(np.array([self.at], np.float32)), {}

    def step(self, action):
        self.at += LR if action else -LR
        return preprocess(np.array([self.at], np.float32)), 1.0, abs(self.at) > OUT, False, {}
"""
TRAIN = """
import sys
sys.path.append(sys.argv[1])
from headrace import run

if __name__ == "__main__":
    print(run("c.yaml").behaviors["C"].step)
"""
COMMON_NAMES = {
    "my_env.py": CORRIDOR,
    "train.py": TRAIN,
    "config.py": "LR = 0.1\n",
    "queues.py": "",
    "pipeline.py": "def preprocess(x):\n    return x\n",
    "stages/__init__.py": "",
    "stages/first.py": "START = 0.5\n",
    "utils.py": "OUT = 0.95\n",
    "test_train.py": "from headrace import run\n\ndef test_it():\n    assert run('c.yaml').behaviors['C'].step >= 500\n",
    "c.yaml": """
environment: {kind: gymnasium, factory: "my_env:Corridor", behavior: C, num_envs: 4}
behaviors: {C: {trainer_type: ppo, max_steps: 500, hyperparameters: {buffer_size: 256, batch_size: 64}}}
pipeline: {hosts: {learners: {kind: inline}}}
checkpoint_settings: {run_id: c, force: true}
""",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder whose modules have the names that research projects have most."""
    for name, text in COMMON_NAMES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def call(folder: Path, *line: object, **environment: str) -> str:
    """Call Python in a folder; what it said."""
    done = subprocess.run(
        [sys.executable, *map(str, line)],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


IN_A_NOTEBOOK = f"""\
import sys; sys.path.append({str(ROOT)!r})
from headrace import run
print(run('c.yaml').behaviors)
"""


@pytest.mark.slow  # test_python.py has a script each time
@pytest.mark.parametrize(
    "line",
    [
        pytest.param(("train.py", ROOT), id="script"),
        pytest.param(("-c", IN_A_NOTEBOOK), id="notebook"),
        pytest.param(
            ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", f"pythonpath={ROOT}", "test_train.py"), id="pytest"
        ),
    ],
)
def test_a_project_may_have_modules_of_any_names(project, line):
    """Without a file, as in a notebook, the working directory is first on the path."""
    said = call(project, *line)
    assert "Traceback" not in said
    assert (project / "results/c/C.onnx").exists()


PLUGIN = {
    "poles-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: poles\nVersion: 1.0\n",
    "poles-1.0.dist-info/entry_points.txt": "[headrace.plugins]\npoles = poles\n",
    "poles.py": """
import dataclasses
from headrace import ENVIRONMENT_KINDS
from headrace.stages.environments.gymnasium.making import make_gymnasium_group

ENVIRONMENT_KINDS["poles"] = dataclasses.replace(ENVIRONMENT_KINDS["gymnasium"], meaning="poles", group="poles:make")


def make(request):
    return make_gymnasium_group(request)
""",
}


def test_an_environment_kind_of_an_installed_package_is_validated(
    project,
):
    site = project / "site"
    for name, text in PLUGIN.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text, encoding="utf-8")
    (project / "c.yaml").write_text(COMMON_NAMES["c.yaml"].replace("kind: gymnasium", "kind: poles"), encoding="utf-8")
    said = call(project, COMMAND, "c.yaml", "--validate", PYTHONPATH=f"{ROOT}{os.pathsep}{site}")
    assert "warning" not in said
    assert "behavior C:" in said

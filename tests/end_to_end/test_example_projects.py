"""The folders of examples/ that people copy work as they are copied: from their own place, with their own modules."""

from __future__ import annotations

import ast
import inspect
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from godot_runs import build_in
from unity_runs import BUILD, free_port

from headrace import load_config, run

EXAMPLES = Path(__file__).parents[2] / "examples"
INLINE = ["pipeline.hosts.actors.kind=inline", "pipeline.hosts.learners.kind=inline"]
pytestmark = pytest.mark.lengthy


def copied(name: str, folder: Path) -> Path:
    return shutil.copytree(EXAMPLES / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "results"))


def trained(project: Path, *settings: str) -> Any:
    keys = [f"checkpoint_settings.results_dir={project / 'results'}", "checkpoint_settings.run_id=first", *settings]
    return run(load_config(project / "train.yaml", keys))


def test_the_research_projects_own_tests_pass(tmp_path):
    project = copied("research_project", tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def cells() -> list[str]:
    """The notebook's code."""
    notebook = json.loads((EXAMPLES / "research_project" / "analysis.ipynb").read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*(Agg|pyparsing|deprecated).*")
async def test_the_research_projects_notebook_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(copied("research_project", tmp_path))
    monkeypatch.setenv("MPLBACKEND", "agg")
    names: dict[str, Any] = {}
    for cell in cells():
        made = eval(compile(cell, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
        if inspect.isawaitable(made):
            await made
    assert names["curve"][-1][1] > names["curve"][0][1], "it learns"


def test_the_unity_users_file_and_side_channel_train(tmp_path):
    project = copied("unity_project", tmp_path)
    reports = json.dumps(["--agents", "3", "--report", str(tmp_path / "reports")])
    stand_in = [f"env_settings.env_path={BUILD}", f"env_settings.env_args={reports}"]
    stand_in += [f"env_settings.base_port={free_port(4)}", "behaviors.Simple.max_steps=300"]
    result = trained(project, *stand_in, "behaviors.Simple.hyperparameters.buffer_size=128", *INLINE)
    assert result.behaviors["Simple"].step >= 300
    assert (result.folder / "Simple.onnx").is_file()


def test_the_godot_users_file_trains(tmp_path):
    project = copied("godot_project", tmp_path)
    stand_in = [f"env_settings.env_path={build_in(tmp_path)}", 'env_settings.env_args=["--game=switch"]']
    result = trained(project, *stand_in, "env_settings.base_port=0", "behaviors.Agent.max_steps=2500", *INLINE)
    assert result.behaviors["Agent"].step >= 2500
    assert (result.folder / "Agent.onnx").is_file()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_the_clusters_file_trains_on_its_own_ray(tmp_path):
    result = trained(copied("cluster", tmp_path), "behaviors.CartPole.max_steps=10000")
    assert result.behaviors["CartPole"].step >= 10000

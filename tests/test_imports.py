"""What processes import: a plain run nothing of engines, and the command next to nothing before its learners start."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

PLAIN_RUN = """
import sys
from headrace.config import RunConfig
from headrace.pipeline.run import run
from run_configs import INLINE, cartpole

first = {}


class Watch:
    def find_spec(self, name, path=None, target=None):
        if name in ("grpc", "google.protobuf", "sympy", "aiohttp", "prometheus_client"):
            frame = sys._getframe(1)
            while frame.f_globals["__name__"].partition(".")[0] in ("importlib", "google"):
                frame = frame.f_back
            first[name] = frame.f_globals["__name__"]


sys.meta_path.insert(0, Watch())
plain = cartpole(**INLINE, behaviors__CartPole__max_steps=300)
run(RunConfig.from_plain({**plain, "checkpoint_settings": {"results_dir": sys.argv[1], "run_id": "run"}}))
print(first)
"""


@pytest.mark.lengthy
def test_a_run_without_unity_imports_no_grpc_nor_sympy_and_protobuf_for_its_files_alone(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_RUN, tmp_path],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    importers = ast.literal_eval(done.stdout.splitlines()[-1])
    assert not importers.keys() & {"grpc", "aiohttp", "prometheus_client"}
    assert "sympy" not in importers, "torch imports it at the first use of what needs it"
    assert importers["google.protobuf"].startswith(("tensorboard.", "headrace.stages.policy.onnx.")), importers


def imported_by(module: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; print(*sys.modules)"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_the_command_imports_next_to_nothing_before_the_first_learner_is_started():
    late = {"argparse", "asyncio", "headrace.config", "headrace.queues", "numpy", "pydantic", "yaml"}
    assert not imported_by("headrace.pipeline.cli") & late

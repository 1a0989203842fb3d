"""What the command imports before it starts its first learner."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


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

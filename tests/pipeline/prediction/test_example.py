"""examples/corridor.py: an environment of one's own, trained, and its policy asked, in one file of 20 lines."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow  # the README's program, which differs from it in line breaks, is run by tests/test_page_code.py
def test_the_corridor_example_learns_and_predicts_the_way(tmp_path):
    shutil.copy(ROOT / "examples" / "corridor.py", tmp_path)

    done = subprocess.run(
        [sys.executable, "corridor.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert done.stdout == "[1 0]\n", done.stderr

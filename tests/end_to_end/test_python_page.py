"""The notebook and the sweeps of docs/python.md, as they stand there."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
INLINE = {"hosts": {role: {"kind": "inline"} for role in ("actors", "learners")}}
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


def cells(section: str) -> list[str]:
    text = PAGE.split(f"## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.filterwarnings("ignore:.*(Agg|pyparsing|deprecated).*")
async def test_the_notebooks_three_cells_train_draw_and_predict(tmp_path, monkeypatch):
    """As a notebook runs them: one after the other in one namespace, within an event loop that runs already."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    names: dict[str, Any] = {}
    written = cells("In a notebook")
    assert len(written) == 3
    written[0] = written[0].replace('"checkpoint_settings": {', f'"pipeline": {INLINE}, "checkpoint_settings": {{')
    for cell in written:
        code = compile(cell, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        made = eval(code, names)
        if inspect.isawaitable(made):
            await made
    assert [step for step, _ in names["curve"]][:10] == list(range(2000, 20001, 2000))
    means = [mean for _, mean in names["curve"] if mean is not None]  # no episode may end in a good summary
    assert means[-1] > 2 * means[0], "it learns"
    action, state = names["policy"].predict([0.0, 0.1, 0.0, -0.1])
    assert action in (0, 1)
    assert state is None


def ran(script: str, folder: Path, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "sweeps" / script, "--results", folder, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_parallel_grid_has_a_line_for_each_point(tmp_path):
    lines = ran("parallel_sweep.py", tmp_path, "--rates", "1e-3", "3e-3", "--seeds", "0", "1", "--steps", "4000")
    assert [re.sub(r"[\d.]+(?=[ ,)])", "…", line.split(": ")[1]) for line in lines] == ["… (…, …)"] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"rate-{rate}-seed-{seed}" for rate in ("0.001", "0.003") for seed in (0, 1)
    ]

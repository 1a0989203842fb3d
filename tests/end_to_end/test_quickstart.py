"""The commands of docs/quickstart.md, as they are pasted, but for the clone and the installation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")


def pasted() -> list[str]:
    block = re.search(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    assert block is not None
    return block.group(1).replace("\\\n", "").splitlines()


@pytest.mark.slow
def test_four_commands_train_evaluate_and_film_cartpole(tmp_path):
    clone, install, *commands = pasted()
    assert clone.startswith("git clone ")
    assert ". .venv/bin/activate && pip install" in install
    assert len(commands) == 2
    (tmp_path / "config").symlink_to(ROOT / "config")
    command = tmp_path / "bin" / "run-pipeline"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT}/bin/run-pipeline" "$@"\n')
    command.chmod(0o755)
    path = os.pathsep.join([str(command.parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "SDL_VIDEODRIVER": "dummy"}
    for line in commands:
        done = subprocess.run(line, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    score = re.search(r"^CartPole +5 +([\d.]+) ±", done.stdout, flags=re.MULTILINE)
    assert score is not None, done.stdout
    assert "Filmed: films/first-1.mp4\n" in done.stdout + done.stderr
    assert float(score.group(1)) >= 150, "an untrained one stands for 9 to 20 steps"
    assert sorted(path.name for path in (tmp_path / "films").iterdir()) == [f"first-{n}.mp4" for n in range(1, 6)]
    assert (tmp_path / "results" / "first" / "curves.png").is_file()

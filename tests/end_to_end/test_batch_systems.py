"""The Slurm job of docs/batch-systems.md, with a stand-in for Slurm: warned, it saves and requeues, then resumes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from run_configs import cartpole
from runs import COMMAND, PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="the script is for bash")]

PAGE = Path(__file__).parents[2] / "docs" / "batch-systems.md"


def test_a_warned_slurm_job_saves_and_requeues_and_the_next_one_resumes(tmp_path):
    job = put_files(tmp_path, 10**7)
    process = submitted(job)
    wait_for(job, "Step: 2000.")
    process.send_signal(signal.SIGUSR1)
    assert process.wait(PATIENCE_S) == 0, log(job)
    assert (job / "requeued").read_text(encoding="utf-8") == "requeue 42\n"
    (step,) = re.findall(r"CartPole: (\d+) steps, policy in", log(job))
    put_files(tmp_path, int(step) + 2000)
    process = submitted(job)
    assert process.wait(PATIENCE_S) == 0, log(job)
    assert len((job / "requeued").read_text(encoding="utf-8").splitlines()) == 1
    assert int(re.findall(r"CartPole: (\d+) steps, policy in", log(job))[-1]) >= int(step) + 2000


def put_files(folder: Path, max_steps: int) -> Path:
    """The page's job, a run for it, and a `scontrol` that notes its arguments."""
    (script,) = re.findall(r"```sh\n(#!/bin/bash\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (folder / "train.sbatch").write_text(script, encoding="utf-8")
    plain = cartpole(behaviors__CartPole__max_steps=max_steps, behaviors__CartPole__summary_freq=1000)
    (folder / "my.yaml").write_text(yaml.safe_dump(plain), encoding="utf-8")
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    for name, line in (
        ("run-pipeline", f'exec "{sys.executable}" "{COMMAND}" "$@"'),
        ("scontrol", f'echo "$@" >> "{folder}/requeued"'),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    return folder


def submitted(job: Path) -> subprocess.Popen[bytes]:
    """Start the job as Slurm does; a requeued job appends to the same log."""
    variables = os.environ | {"SLURM_JOB_ID": "42", "PATH": f"{job}/.venv/bin:{os.environ['PATH']}"}
    with (job / "slurm-42.out").open("ab") as out:
        return subprocess.Popen(["bash", "train.sbatch"], cwd=job, env=variables, stdout=out, stderr=out)


def log(job: Path) -> str:
    return (job / "slurm-42.out").read_text(encoding="utf-8")


def wait_for(job: Path, words: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while words not in log(job):
        assert time.monotonic() < deadline, log(job)
        time.sleep(0.05)

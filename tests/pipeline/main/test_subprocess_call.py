"""A call in a process of its own leaves neither process nor folder, whatever ends whoever waits for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from headrace.ending import REQUESTS

if sys.platform != "linux":
    pytest.skip("elsewhere no sweeper ends what has left its session", allow_module_level=True)

pytestmark = pytest.mark.lengthy

HANGING = """
import os, pathlib, subprocess, time

def hang(config, folder):
    game = subprocess.Popen(["sleep", "600"], start_new_session=True)
    pathlib.Path(folder, "kept").touch()
    pathlib.Path("part").write_text(f"{os.getpid()} {game.pid}")
    pathlib.Path("part").rename("pids")
    time.sleep(600)
"""
MAIN = """
from run_configs import cartpole
from headrace.config import RunConfig
from headrace.ending import ended_at_once
from headrace.pipeline.main.subprocess_call import call_in_subprocess
with ended_at_once():
    call_in_subprocess("hanging:hang", RunConfig.from_plain(cartpole()), 600, with_folder=True)
"""
OTHERS = [pytest.param(number, marks=pytest.mark.slow) for number in REQUESTS]


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("number", [signal.SIGKILL, *OTHERS])
def test_a_call_leaves_nothing_when_whoever_waits_for_it_is_ended(tmp_path: Path, number: signal.Signals):
    (tmp_path / "hanging.py").write_text(HANGING)
    (tmp_path / "tmp").mkdir()
    path = os.pathsep.join([str(tmp_path), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path / "tmp")}
    with subprocess.Popen([sys.executable, "-c", MAIN], cwd=tmp_path, env=environment, stderr=subprocess.PIPE) as main:
        while not (tmp_path / "pids").exists():
            assert main.poll() is None
            time.sleep(0.01)
        main.send_signal(number)
        said = main.communicate(timeout=60)[1].decode()
    assert main.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    assert said.count("\n") == (number != signal.SIGKILL)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    deadline = time.monotonic() + 60
    while not all(map(gone, pids)) or [*(tmp_path / "tmp").iterdir()]:
        assert time.monotonic() < deadline, f"{pids}, {[*(tmp_path / 'tmp').iterdir()]}"
        time.sleep(0.01)

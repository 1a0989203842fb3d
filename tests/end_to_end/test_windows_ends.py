"""Whole runs on Windows end in order, or are killed, and leave neither a host nor a game, nor what that has started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from godot_runs import GAME
from run_folders import read_whole_checkpoint
from runs import COMMAND
from windows_console import CLOSE, CTRL_BREAK, CTRL_C, ask

pytestmark = [pytest.mark.windows, pytest.mark.timeout(300)]

STARTER = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
sys.exit(subprocess.call([sys.executable, {str(GAME)!r}, *sys.argv[1:]]))
"""


def build_in(folder: Path) -> Path:
    """A build that is a script, which starts a program, which starts the game and another program that never ends."""
    (folder / "starter.py").write_text(STARTER, encoding="utf-8")
    (folder / "game.bat").write_text(f'@"{sys.executable}" "{folder / "starter.py"}" %*\r\n', encoding="utf-8")
    return folder / "game.bat"


def playing(folder: Path, **hosts: dict[str, str]) -> dict[str, object]:
    return {
        "environment": {"kind": "godot"},
        "env_settings": {
            "env_path": str(build_in(folder)),
            "env_args": ["--game=switch", "--agents=4"],
            "base_port": 0,
            "num_envs": 2,
        },
        "behaviors": {
            "Agent": {
                "trainer_type": "ppo",
                "hyperparameters": {"buffer_size": 512, "batch_size": 64},
                "max_steps": 10**7,
                "checkpoint_interval": 1000,
                "summary_freq": 500,
                "time_horizon": 16,
            }
        },
        "pipeline": {"hosts": hosts},
    }


@pytest.fixture
def learning(start, tmp_path):
    """A run that has a checkpoint."""
    command = start(playing(tmp_path))
    command.until_checkpoint(0)
    return command


@pytest.mark.parametrize("event", [CTRL_C, CTRL_BREAK, CLOSE], ids=["Ctrl-C", "Ctrl-Break", "a closed console"])
def test_a_console_event_saves_a_checkpoint_and_leaves_no_game(learning, event):
    ask(learning.process.pid, event)
    assert learning.wait() == 0, learning.output
    assert "Learning was interrupted" in learning.output
    assert read_whole_checkpoint(learning.run_folder)["trainer@learner-Agent"]["trainer"]["step"] >= 1000
    learning.assert_left_nothing()


def test_a_killed_main_leaves_no_game(learning):
    learning.process.kill()
    learning.until_gone()


def test_a_killed_main_with_inline_hosts_leaves_no_game(start, tmp_path):
    command = start(playing(tmp_path, actors={"kind": "inline"}, learners={"kind": "inline"}))
    command.until_checkpoint(0)
    command.process.kill()
    command.until_gone()


def test_a_killed_actor_or_game_leaves_no_child_and_is_replaced(learning):
    for victim in (learning.pid_of("actor-0"), None):
        before = set(learning.processes()) - {learning.process.pid, learning.pid_of("learner-Agent")}
        games = [pid for pid in before if "game.bat" in " ".join(psutil.Process(pid).cmdline())]
        psutil.Process(victim or games[0]).kill()
        gone = before if victim else {games[0]}
        learning.until(lambda gone=gone: not gone & set(learning.processes()), "end of what was left")
        number = learning.until_checkpoint(0).number
        learning.until_checkpoint(number + 2)
        assert len(learning.processes()) == len(before) + 2, "as many as before"
    ask(learning.process.pid, CTRL_BREAK)
    assert learning.wait() == 0, learning.output
    learning.assert_left_nothing()


def test_the_page_over_a_run_ends_at_ctrl_break(learning, tmp_path):
    learning.process.kill()
    learning.wait()
    line = [sys.executable, str(COMMAND), "--view", str(learning.run_folder), "--monitor=0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as page:
        assert page.stdout is not None
        assert "Ctrl-C ends" in page.stdout.readline()
        ask(page.pid, CTRL_BREAK)
        assert page.wait(60) == 0

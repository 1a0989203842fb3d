"""A laptop's lid that is closed for a while, a clock that jumps, and a second run in a league's folder."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from league_runs import CONFIG, League
from run_configs import cartpole

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found by /proc"),
]
SOON = {"warn_s": 2, "end_s": 5}
CLOSED_S = 15.0
"""Longer than any limit in training."""
LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))


@pytest.mark.parametrize("first", ["main", "hosts"])
def test_a_run_that_is_suspended_as_a_whole_continues_without_a_restart(start, first):
    limits = {f"pipeline__supervision__{role}": SOON for role in ("actors", "learners", "main")}
    command = start(cartpole(behaviors__CartPole__max_steps=10**7, env_settings__timeout_wait=5, **limits))
    number = command.until_checkpoint(1).number
    stopped = sorted(command.processes(), key=lambda pid: (pid == command.process.pid) == (first == "hosts"))
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(CLOSED_S)  # the lid is closed
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    command.until_checkpoint(number + 5)
    command.interrupt()
    assert command.wait() == 0, command.output
    assert "Restarting it" not in command.output
    command.assert_left_nothing()


@pytest.mark.skipif(not LIBRARIES, reason="libfaketime is not installed")
def test_a_clock_that_jumps_changes_nothing_but_dates(start, tmp_path):
    """As a system's clock jumps: the monotonic clock goes on as before."""
    clock = tmp_path / "clock"
    clock.write_text("+0")
    environment = {
        "LD_PRELOAD": str(LIBRARIES[0]),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    plain = cartpole(behaviors__CartPole__max_steps=10**7, evaluation={"every": 2000, "episodes": 1})
    command = start(plain, environment=environment)
    number = command.until_checkpoint(0).number
    for jump in ("+3d", "-400d", "+0"):
        clock.write_text(jump)
        number = command.until_checkpoint(number + 3).number
    clock.write_text("-400d")
    command.interrupt()
    assert command.wait() == 0, command.output
    for word in ("Restarting it", "abandoned", "Traceback"):
        assert word not in command.output
    resumed = start(plain, "--resume", environment=environment)
    resumed.until_checkpoint(number + 3)
    resumed.interrupt()
    assert resumed.wait() == 0, resumed.output
    resumed.assert_left_nothing()


@pytest.mark.parametrize("option", ["--resume", "--force"])
def test_a_second_run_in_a_leagues_folder_is_refused_and_the_first_continues(start, option):
    command = start(CONFIG)
    league = League(command.run_folder)
    number = command.until_checkpoint(1).number
    second = start(CONFIG, option)
    assert second.wait() == 2
    assert f"in use by process {command.process.pid}" in second.output
    command.until_checkpoint(number + 3)
    league.assert_whole()
    command.interrupt()
    assert command.wait() == 0, command.output
    league.assert_whole()
    command.assert_left_nothing()

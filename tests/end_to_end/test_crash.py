"""Real `kill -9`: of main, of an actor, of a learner. Nothing stays behind, and no checkpoint is ever lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from run_configs import INLINE, cartpole, changed, volley
from run_folders import read_whole_checkpoint
from runs import COMMAND, run_here

LONG = cartpole(behaviors__CartPole__max_steps=10**7, behaviors__CartPole__checkpoint_interval=1000)
"""A run with process hosts that goes on until it is stopped, with many checkpoints."""
LONG_PLAY = volley(behaviors__Volley__max_steps=10**7, behaviors__Volley__checkpoint_interval=1000)
"""The same, whose trajectories go through main."""


@pytest.mark.slow  # test_determinism.py has it too
def test_killed_main_takes_its_hosts_with_it_and_the_run_resumes(start):
    command = start(LONG)
    command.until_checkpoint(1)
    command.process.kill()
    command.wait()
    command.assert_left_nothing()
    assert_resumes(command)


def test_a_killed_actor_is_replaced_and_the_run_goes_on(start):
    command = start(LONG)
    number = command.until_checkpoint(1).number
    killed = kill(command, "actor-0")
    command.until_checkpoint(number + 3)  # one may have been under way
    assert command.pid_of("actor-0") != killed
    assert "actor-0 was killed by signal 9. Starting it again" in command.output
    command.interrupt()
    assert command.wait() == 0, command.output
    command.assert_left_nothing()
    assert_resumes(command)


@pytest.mark.parametrize(
    "plain",
    [
        pytest.param(LONG, id="straight to the learner"),
        pytest.param(LONG_PLAY, id="through main", marks=pytest.mark.slow),
    ],
)
def test_an_actor_that_may_not_be_replaced_ends_the_run_and_nobody_waits_for_it(start, plain):
    command = start(changed(plain, {"env_settings__restarts_rate_limit_n": 0}))
    command.until_checkpoint(1)
    kill(command, "actor-0")
    assert command.wait() == 1, command.output
    assert "the process of actor-0 was killed by signal 9. It is not restarted again" in command.output
    assert "did not end within" not in command.output
    assert "Traceback" not in command.output
    command.assert_left_nothing()
    read_whole_checkpoint(command.run_folder)


def test_a_killed_learner_ends_the_run_which_resumes_from_the_checkpoint_before(start):
    command = start(LONG)
    command.until_checkpoint(1)
    kill(command, "learner-CartPole")
    assert command.wait() == 1, command.output
    assert "the process of learner-CartPole was killed by signal 9" in command.output
    assert "--run-id run --resume" in command.output
    assert "Traceback" not in command.output
    command.assert_left_nothing()
    assert_resumes(command)


@pytest.mark.slow
def test_killed_at_random_moments_nothing_goes_back_behind_the_last_checkpoint(tmp_path):
    benchmark = COMMAND.parents[1] / "benchmarks" / "kill.py"
    told = subprocess.run(
        [sys.executable, str(benchmark), "--times", "60", "--seed", "0", "--folder", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert " 0 violations" in told.stdout


def kill(command, host):
    pid = command.pid_of(host)
    os.kill(pid, signal.SIGKILL)
    return pid


def assert_resumes(command):
    """The newest checkpoint is whole, and training goes on from it for some updates."""
    states = read_whole_checkpoint(command.run_folder)
    step = states["trainer@learner-CartPole"]["trainer"]["step"]
    more = changed(LONG, {"behaviors__CartPole__max_steps": step + 1200, **INLINE})
    result = run_here(more, command.results, "run", resume=True)
    assert result.behaviors["CartPole"].step >= step + 1200
    assert result.behaviors["CartPole"].version > states["trainer@learner-CartPole"]["trainer"]["version"]

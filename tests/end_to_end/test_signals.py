"""The first signal saves and ends, the second ends at once; nothing stays behind either way."""

from __future__ import annotations

import os
import signal

import pytest
from run_configs import TROUBLED_ENV, cartpole, troubled
from run_folders import read_whole_checkpoint

LONG = cartpole(behaviors__CartPole__max_steps=10**7, behaviors__CartPole__checkpoint_interval=10**7)
"""A run that makes no checkpoint of its own accord."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_a_checkpoint_and_ends_the_run_well(start, number):
    command = start(LONG)
    command.until(lambda: "Step: 1000." in command.output, "the first summary")
    for pid in command.hosts().values():  # a terminal or service manager may send it to everybody: it is for main
        assert os.getpgid(pid) != os.getpgid(command.process.pid)
        os.kill(pid, number)
    summaries = command.output.count("Step: ")
    command.until(lambda: command.output.count("Step: ") > summaries + 1, "further summaries")
    command.interrupt(number)
    assert command.wait() == 0, command.output
    assert "Learning was interrupted" in command.output
    assert "Traceback" not in command.output
    assert "killed" not in command.output
    states = read_whole_checkpoint(command.run_folder)
    assert states["trainer@learner-CartPole"]["trainer"]["step"] >= 1000
    command.assert_left_nothing()


def test_a_run_that_waits_for_its_game_ends_at_a_signal_without_a_complaint(start):
    waits = {
        "environment": {"kind": "open_protocol"},
        "env_settings": {"base_port": 0},
        "behaviors": {"Agent": {"trainer_type": "ppo"}},
    }
    command = start(waits)
    command.until(lambda: "Listening on port" in command.output, "the wait for a game")
    command.interrupt()
    assert command.wait() == 0, command.output
    assert "Learning was interrupted" in command.output
    assert "[WARNING]" not in command.output
    command.assert_left_nothing()


def test_a_second_signal_ends_a_run_at_once_that_can_not_be_drained(start, tmp_path):
    command = start(troubled(trouble="hang", once=str(tmp_path / "hangs")), beside=[TROUBLED_ENV])
    command.until((tmp_path / "hangs").exists, "an environment that hangs")
    command.interrupt()
    command.until(lambda: "Learning was interrupted" in command.output, "the first signal's answer")
    assert command.process.poll() is None, "with an actor that never answers, draining takes its time"
    command.interrupt()
    assert command.wait() == 130, command.output
    assert "ended at once" in command.output
    assert "Traceback" not in command.output
    command.assert_left_nothing()


def test_a_last_checkpoint_that_comes_to_nothing_is_a_failure_which_speaks_of_no_earlier_one(start):
    command = start(LONG)
    command.until(lambda: "Step: 1000." in command.output, "the first summary")
    learner = command.pid_of("learner-CartPole")
    os.kill(learner, signal.SIGSTOP)
    command.interrupt()
    command.until(lambda: "Learning was interrupted" in command.output, "the signal's answer")
    os.kill(learner, signal.SIGKILL)
    assert command.wait() == 1, command.output
    assert "the run's last checkpoint could not be written" in command.output
    assert "could not be written, and there is none before it: learner-CartPole has ended" in command.output
    assert "no word of trainer@learner-CartPole" in command.output
    assert "--resume" not in command.output
    assert "Traceback" not in command.output
    command.assert_left_nothing()

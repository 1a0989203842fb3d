"""What hangs ends with main, and is named with its stack; tests/chaos has what hangs, and where."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from run_configs import cartpole
from runs import NEEDS_LINUX

HANGING = [Path(__file__).with_name(f"hanging_{what}.py") for what in ("stages", "trainers")]


@NEEDS_LINUX
def test_a_learner_that_hangs_dies_with_main_and_so_does_its_actor(start, tmp_path):
    command = start(cartpole(behaviors__CartPole__trainer_type="hanging_trainers:LockingTrainer"), beside=HANGING)
    command.until((tmp_path / "hangs").exists, "a learner that hangs")
    command.process.kill()
    command.wait()
    command.assert_left_nothing()


SOON = {"warn_s": 2, "end_s": 5}
LIMITS = {f"pipeline__supervision__{role}": SOON for role in ("actors", "learners", "main")}


@pytest.mark.slow
def test_a_learner_that_hangs_is_named_with_its_stack_and_ends_the_run(start):
    limits = {**LIMITS, "env_settings__restarts_rate_limit_n": 0}
    plain = cartpole(behaviors__CartPole__trainer_type="hanging_trainers:LockingTrainer", **limits)
    command = start(plain, beside=HANGING)
    assert command.wait() == 1, command.output
    assert "(pipeline.supervision.learners.warn_s)" in command.output
    assert "hanging_stages.py" in command.output
    assert "in hang" in command.output
    command.assert_left_nothing()


@pytest.mark.slow
def test_a_suspended_evaluation_is_reported_and_restarted_and_the_run_continues(start):
    plain = cartpole(evaluation={"every": 500, "episodes": 1}, behaviors__CartPole__max_steps=10**7, **LIMITS)
    command = start(plain)
    command.until(lambda: "Step: 1000." in command.output, "the first summary")
    os.kill(command.pid_of("evaluation"), signal.SIGSTOP)
    command.until(lambda: "Evaluation has failed: evaluation has been silent for" in command.output, "its end")
    command.interrupt()
    assert command.wait() == 0, command.output
    command.assert_left_nothing()


def test_a_second_signal_ends_a_run_whose_event_loop_is_held(start, tmp_path):
    stage = {"use": "hanging_stages:Hangs", "host": "main", "with": {"how": "sleep"}}
    command = start(cartpole(pipeline__stages=[stage]), beside=HANGING)
    command.until((tmp_path / "hangs").exists, "a stage that hangs")
    command.interrupt()
    command.until(
        lambda: "A second Ctrl-C (SIGINT) ends the run immediately." in command.output, "the first signal's answer"
    )
    command.interrupt_again()
    assert command.wait() == 130, command.output
    assert "in hang" in command.output
    assert "Traceback" not in command.output
    command.assert_left_nothing()

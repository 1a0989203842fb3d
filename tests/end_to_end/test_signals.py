"""The first signal saves and ends, as in test_last_checkpoint.py; test_liveness.py has the second, which ends at once.

tests/chaos has both at other moments, and a terminal that closes.
"""

from __future__ import annotations

import os
import signal

from run_configs import INLINE, cartpole, changed

LONG = cartpole(behaviors__CartPole__max_steps=10**7, behaviors__CartPole__checkpoint_interval=10**7)
"""A run that makes no checkpoint of its own accord."""


def test_a_run_that_waits_for_its_game_ends_at_a_signal(start):
    waits = {
        "environment": {"kind": "open_protocol"},
        "env_settings": {"base_port": 0},
        "behaviors": {"Agent": {"trainer_type": "ppo"}},
    }
    command = start(changed(waits, INLINE))
    command.until(lambda: "Listening on port" in command.output, "the wait for a game")
    command.interrupt()
    assert command.wait() == 0, command.output
    assert "Learning was interrupted" in command.output
    assert "[WARNING]" not in command.output
    command.assert_left_nothing()


def test_a_run_without_any_checkpoint_fails_if_its_last_one_can_not_be_written(start):
    command = start(LONG)
    command.until(lambda: "Step: 1000." in command.output, "the first summary")
    learner = command.pid_of("learner-CartPole")
    os.kill(learner, signal.SIGSTOP)
    command.interrupt()
    command.until(lambda: "Learning was interrupted" in command.output, "the signal's answer")
    os.kill(learner, signal.SIGKILL)
    assert command.wait() == 1, command.output
    assert "the run's last checkpoint could not be written" in command.output
    assert "could not be written, and there is no earlier one: learner-CartPole ended" in command.output
    assert "learner-CartPole ended before it delivered trainer@learner-CartPole" in command.output
    assert "--resume" not in command.output
    assert "Traceback" not in command.output
    command.assert_left_nothing()

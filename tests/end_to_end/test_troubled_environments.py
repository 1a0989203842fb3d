"""Environments that raise, hang, or give nonsense: restarted within limits, and named beyond them."""

from __future__ import annotations

import re

import pytest
from run_configs import INLINE, TROUBLED_ENV, changed, troubled
from run_folders import read_whole_checkpoint
from runs import run_here

from headrace.pipeline.common.errors import RunFailed

BEHAVIOR = "behaviors__CartPole__"


def test_one_that_raises_is_restarted_and_the_run_comes_to_its_end(tmp_path, caplog):
    plain = troubled(trouble="raise", once=str(tmp_path / "happened"))
    result = run_here(changed(plain, {**INLINE, BEHAVIOR + "max_steps": 2000}), tmp_path, "run")
    assert (tmp_path / "happened").exists()
    said = r"RuntimeError: the motor is on fire \(at \S*troubled_env\.py:\d+, in step\). Restarting it \(restart 1\)"
    assert re.search(said, caplog.text)
    assert result.behaviors["CartPole"].step >= 2000


@pytest.mark.slow
def test_one_that_raises_again_and_again_ends_the_run_which_is_saved(start):
    """By default there is one restart a minute."""
    command = start(troubled(trouble="raise", after=300), beside=[TROUBLED_ENV])
    assert command.wait() == 1, command.output
    assert "Restarting it (restart 1)" in command.output
    where = r"\(at \S*troubled_env\.py:\d+, in step\)"
    said = rf"the motor is on fire {where}. It is not restarted again: it was restarted once within 60 s"
    assert re.search(said, command.output)
    assert command.output.count("--debug shows the whole traceback.") == 1
    assert "env_settings.restarts_rate_limit_n is 1" in command.output
    assert "Resume from the last checkpoint with: --run-id run --resume" in command.output
    assert "Traceback" not in command.output
    # What was learned before is not lost: the trainer, which is sound, has saved where it stood.
    states = read_whole_checkpoint(command.run_folder)
    assert states["trainer@learner-CartPole"]["trainer"]["step"] > 1000
    command.assert_left_nothing()


def test_one_that_can_not_even_be_made_is_named(tmp_path):
    plain = changed(troubled(), {**INLINE, "environment__options": {"colour": "red"}})
    with pytest.raises(RunFailed, match=r"environment\.options do not fit.*colour"):
        run_here(plain, tmp_path, "run")


@pytest.mark.slow  # tests/chaos has it too
def test_one_that_hangs_is_killed_and_replaced(start, tmp_path):
    plain = troubled(trouble="hang", once=str(tmp_path / "happened"))
    command = start(changed(plain, {"env_settings__timeout_wait": 4}), beside=[TROUBLED_ENV])
    assert command.wait() == 0, command.output
    assert re.search(r"actor-0 has been silent for \d+ s \(env_settings.timeout_wait\): stage actor", command.output)
    assert "Starting it again" in command.output
    states = read_whole_checkpoint(command.run_folder)
    assert states["trainer@learner-CartPole"]["trainer"]["step"] >= 3000
    command.assert_left_nothing()


def test_a_reward_that_is_not_a_number_is_named_and_not_trained_on(tmp_path):
    """In processes tests/chaos has it."""
    with pytest.raises(RunFailed) as failed:
        run_here(changed(troubled(trouble="nan", after=550), INLINE), tmp_path, "run")
    message = str(failed.value)
    assert "stage trainer failed on item" in message
    assert "reward" in message
    assert "agent " in message
    assert "step " in message
    assert "CartPole" in message
    states = read_whole_checkpoint(tmp_path / "run")
    weights = states["trainer@learner-CartPole"]["trainer"]["weights"]
    assert all(abs(weight).max() < 100 for weight in weights.values())  # NaN is not

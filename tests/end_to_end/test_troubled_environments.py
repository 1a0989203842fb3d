"""Environments that raise, or give nonsense: restarted within limits, and named. tests/chaos has those that hang."""

from __future__ import annotations

import re

import pytest
from run_configs import INLINE, changed, troubled
from run_folders import read_whole_checkpoint
from runs import run_here

from headrace.pipeline.common.errors import RunFailed

BEHAVIOR = "behaviors__CartPole__"


def test_an_environment_that_raises_is_restarted(tmp_path, caplog):
    plain = troubled(trouble="raise", once=str(tmp_path / "happened"))
    result = run_here(changed(plain, {**INLINE, BEHAVIOR + "max_steps": 2000}), tmp_path, "run")
    assert (tmp_path / "happened").exists()
    said = r"RuntimeError: the motor is on fire \(at \S*troubled_env\.py:\d+, in step\). Restarting it \(restart 1\)"
    assert re.search(said, caplog.text)
    assert result.behaviors["CartPole"].step >= 2000


def test_invalid_environment_options_are_named(tmp_path):
    plain = changed(troubled(), {**INLINE, "environment__options": {"colour": "red"}})
    with pytest.raises(RunFailed, match=r"environment\.options: .* does not accept .*colour"):
        run_here(plain, tmp_path, "run")


def test_a_reward_that_is_not_a_number_is_named_and_not_trained_on(tmp_path):
    """tests/chaos tests this in processes."""
    with pytest.raises(RunFailed) as failed:
        run_here(changed(troubled(trouble="nan", after=550), INLINE), tmp_path, "run")
    assert "TroubledEnv', instance 0: step() returned reward nan" in str(failed.value)
    states = read_whole_checkpoint(tmp_path / "run")
    weights = states["trainer@learner-CartPole"]["trainer"]["weights"]
    assert all(abs(weight).max() < 100 for weight in weights.values())  # NaN is not

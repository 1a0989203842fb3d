"""Whatever hangs is named and ended: learners, actors, stages, main itself; and nothing outlives main."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_configs import cartpole

HANGING = Path(__file__).with_name("hanging_stages.py")


@pytest.mark.parametrize("trainer", [pytest.param("ComputingTrainer", marks=pytest.mark.slow), "LockingTrainer"])
def test_a_learner_that_hangs_dies_with_main_and_so_does_its_actor(start, tmp_path, trainer):
    command = start(cartpole(behaviors__CartPole__trainer_type=f"hanging_stages:{trainer}"), beside=[HANGING])
    command.until((tmp_path / "hangs").exists, "a learner that hangs")
    command.process.kill()
    command.wait()
    command.assert_left_nothing()

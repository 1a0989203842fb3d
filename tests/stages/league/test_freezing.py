"""When a learner is frozen, and when it is reset after that."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.config.league import FreezeSettings, ResetSettings
from headrace.stages.league.controller import LearnerProgress, is_due, is_reset

FREEZE = FreezeSettings(after=20, at_most=40)


@pytest.mark.parametrize(
    ("steps", "chances", "due"),
    [
        (19, [0.9], False),
        (20, [0.9, 0.71], True),
        (20, [0.9, 0.7], False),
        (39, [0.9, 0.1], False),
        (40, [0.9, 0.1], True),
        (20, [], False),
        (40, [], True),
    ],
)
def test_a_learner_is_frozen_when_it_beats_all_or_after_the_most_steps(steps, chances, due):
    assert is_due(FREEZE, steps, chances) is due


def test_without_a_win_rate_it_is_frozen_after_the_most_steps():
    freeze = FREEZE.model_copy(update={"win_rate": None})
    assert not is_due(freeze, 39, [1.0])
    assert is_due(freeze, 40, [0.0])


def test_a_reset_is_drawn_with_its_probability():
    random = np.random.default_rng(0)
    drawn = [is_reset(ResetSettings(probability=0.25), random) for _ in range(4000)]
    assert 0.22 < np.mean(drawn) < 0.28


def test_a_trainer_that_went_back_is_frozen_as_many_steps_later():
    progress = LearnerProgress(step=100, version=5, frozen=90)
    progress.advance(60, 3)
    assert progress == LearnerProgress(step=60, version=3, frozen=60)

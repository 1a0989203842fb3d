"""The criterion by which a trainer stops early, by hand-computed means."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest

from headrace.config.behaviors import StopWhenSettings
from headrace.stages.trainer.stage import StopCriterion


def judged(settings: StopWhenSettings | None, *looks: tuple[int, Sequence[float]]) -> list[bool]:
    criterion = StopCriterion(settings)
    return [bool(criterion.check(step, deque(recent))) for step, recent in looks]


def test_a_mean_needs_enough_episodes_and_uses_only_the_last_ones():
    settings = StopWhenSettings(mean_reward=2.0, over=3)
    assert judged(settings, (10, [9, 9]), (20, [9, 1, 2, 2]), (30, [0, 1, 2, 3])) == [False, False, True]


def test_a_plateau_is_as_many_steps_without_a_mean_above_the_highest():
    settings = StopWhenSettings(plateau=100, over=2)
    means = {0: 1.0, 90: 1.0, 99: 1.5, 150: 0.0, 198: 1.5, 199: 1.5}
    assert judged(settings, *((step, [mean, mean]) for step, mean in means.items())) == [
        False,
        False,
        False,
        False,
        False,
        True,
    ]


def test_a_resumed_trainer_continues_its_plateau():
    settings = StopWhenSettings(plateau=100, over=1)
    first, resumed = StopCriterion(settings), StopCriterion(settings)
    first.check(50, [5.0])
    resumed.load_state_dict(first.state_dict())
    assert not resumed.check(149, [4.0])
    assert resumed.check(150, [4.0]) == "the mean return of 1 episodes has not risen for 100 steps (stop_when.plateau)"


@pytest.mark.parametrize("reward", [-1.0, 2.5])
def test_the_reason_names_the_mean_and_the_key(reward):
    criterion = StopCriterion(StopWhenSettings(mean_reward=reward, over=2))
    assert (
        criterion.check(1, [reward, reward]) == f"the mean return of 2 episodes is {reward:g} (stop_when.mean_reward)"
    )

"""The built-in game rock, paper, scissors: who wins what, and its equilibrium."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.queues.messages import ActionBatch
from headrace.stages.games.rock_paper_scissors import RockPaperScissorsGroup, equilibrium, payoffs

FIRST, SECOND = "RPS?team=0", "RPS?team=1"


def choices(*numbers):
    return ActionBatch(np.zeros((len(numbers), 0), np.float32), np.array(numbers, np.int32)[:, None])


def test_each_tick_is_a_game_whose_winner_gets_its_stake():
    group = RockPaperScissorsGroup(4, behavior="RPS", stakes=(1, 2, 3))
    begun = group.reset(0)
    assert begun.games is None
    assert [len(steps.env_ids) for steps in begun.steps.values()] == [4, 4]
    result = group.step({FIRST: choices(0, 1, 2, 1), SECOND: choices(2, 0, 1, 1)})
    first, second = result.steps[FIRST], result.steps[SECOND]
    assert first.rewards.tolist() == [1, 2, 3, 0, 0, 0, 0, 0]
    assert second.rewards.tolist() == [-1, -2, -3, 0, 0, 0, 0, 0]
    assert first.episode_ids.tolist() == [0] * 4 + [1] * 4
    assert result.games.outcomes.tolist() == [[1, 0], [1, 0], [1, 0], [0.5, 0.5]]


@pytest.mark.parametrize("stakes", [(1, 1, 1), (1, 2, 3), (5, 0.5, 2)])
def test_nothing_wins_against_the_equilibrium(stakes):
    assert np.allclose(payoffs(stakes), -payoffs(stakes).T)
    assert np.allclose(payoffs(stakes) @ equilibrium(stakes), 0)
    assert np.isclose(equilibrium(stakes).sum(), 1)


def test_invalid_options_are_refused():
    with pytest.raises(ValueError, match="num_envs is 0"):
        RockPaperScissorsGroup(0)
    with pytest.raises(ValueError, match="expected three numbers above 0"):
        RockPaperScissorsGroup(1, stakes=(1, 2))

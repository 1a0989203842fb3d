"""Who won."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.stages.environments.pettingzoo.teams import TeamScores, game_outcomes


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([1.0, -1.0], [1, 0]),
        ([-3.0, -2.0], [0, 1]),
        ([0.0, 0.0], [0.5, 0.5]),
        ([0.1 + 0.2, 0.3], [0.5, 0.5]),
        ([2.0, 5.0, 5.0], [0, 0.5, 0.5]),
    ],
)
def test_the_best_wins_and_equals_draw(scores, expected):
    np.testing.assert_array_equal(game_outcomes([scores], len(scores)), np.array([expected], np.float32))


def test_a_score_is_the_return_or_what_came_last():
    score = TeamScores(2)
    score.add(0, 2.0, at_the_end=False)
    score.add(0, -0.5, at_the_end=True)
    score.add(1, 1.0, at_the_end=True)
    score.add(1, 0.25, at_the_end=True)

    assert score.by("return") == [1.5, 1.25]
    assert score.by("last_reward") == [-0.5, 1.25]

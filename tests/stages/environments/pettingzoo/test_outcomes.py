"""Who won."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.stages.environments.pettingzoo.teams import game_outcomes


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

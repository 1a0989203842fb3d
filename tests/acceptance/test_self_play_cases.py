"""Self-play comes out as ML-Agents accepts it, on four of five seeds.

test_pettingzoo.py and test_self_play.py, in end_to_end, have self-play that learns each time.
"""

from __future__ import annotations

import pytest
from acceptance.self_play_cases import CASES, try_self_play

pytestmark = pytest.mark.lengthy


SEEDS = range(5)
ENOUGH = 4


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CASES)
def test_a_case_comes_out_as_it_has_to_on_four_of_five_seeds(name, tmp_path):
    found = [try_self_play(CASES[name], tmp_path / str(seed), seed) for seed in SEEDS]
    assert sum(accepted for accepted, _ in found) >= ENOUGH, [scores for _, scores in found]

"""Trainers learn what they have to, on four of five seeds. The quick ones run always, the rest with `-m slow`.

`benchmarks/acceptance.py` runs the same cases with scores and times, which is the way to tune.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from acceptance.cases import CASES, changed
from acceptance.harness import try_case

pytestmark = pytest.mark.lengthy


QUICK = ("ppo discrete", "ppo gail+bc discrete", "sac discrete", "poca discrete")
SEEDS = range(5)
ENOUGH = 4


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", QUICK)
def test_a_quick_case_is_learned_by_one_of_two_seeds(name, tmp_path):
    """The quick ones learn in half of the steps that they have."""
    case = CASES[name]
    half = replace(case, behavior=changed(case.behavior, max_steps=case.steps // 2))
    assert any(try_case(half, tmp_path / str(seed), seed).accepted for seed in range(2))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", CASES)
def test_a_case_is_learned_on_four_of_five_seeds(name, tmp_path):
    scores, accepted = [], 0
    for seed in SEEDS:
        outcome = try_case(CASES[name], tmp_path / str(seed), seed)
        scores.append(outcome.score)
        accepted += outcome.accepted
        if accepted >= ENOUGH or len(scores) - accepted > len(SEEDS) - ENOUGH:
            break
    assert accepted >= ENOUGH, f"{name}: {accepted} of {len(scores)} seeds accepted, scores {scores}"

"""What is not learned from its hardest setting within a budget is learned through lessons."""

from __future__ import annotations

import pytest
import torch
from acceptance.lesson_tasks import LENGTH, THRESHOLD, attempt, lessons

pytestmark = pytest.mark.lengthy


SEEDS = range(5)
ENOUGH = 4
"""Of the seeds."""


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_corridor_is_learned_through_lessons(tmp_path):
    scores = [attempt(lessons(), tmp_path, seed)[1] for seed in SEEDS]
    assert sum(score > THRESHOLD for score in scores) >= ENOUGH, scores


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_same_corridor_is_not_learned_from_its_far_end_at_once(tmp_path):
    scores = [attempt(LENGTH, tmp_path, seed)[1] for seed in SEEDS]
    assert sum(score > THRESHOLD for score in scores) <= len(SEEDS) - ENOUGH, scores

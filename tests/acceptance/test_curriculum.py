"""What is not learned from its hardest setting within a budget is learned through lessons."""

from __future__ import annotations

import json

import pytest
import torch
from acceptance.harness import final_score, train
from acceptance.lesson_tasks import DISTANCES, NUM_ENVS, THRESHOLD, configuration, lessons

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
    scores = []
    for seed in SEEDS:
        result, returns = train(configuration(lessons()), tmp_path, seed)
        status = json.loads((result.folder / "run_logs" / "training_status.json").read_text())
        learned = status["distance"]["lesson_num"] == len(DISTANCES) - 1
        scores.append(final_score(returns, NUM_ENVS) if learned else 0.0)
    assert sum(score > THRESHOLD for score in scores) >= ENOUGH, scores


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_same_corridor_is_not_learned_from_its_far_end_at_once(tmp_path):
    scores = [final_score(train(configuration(DISTANCES[-1]), tmp_path, seed)[1], NUM_ENVS) for seed in SEEDS]
    assert sum(score > THRESHOLD for score in scores) <= len(SEEDS) - ENOUGH, scores

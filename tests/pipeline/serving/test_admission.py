"""The bound of requests under way follows the time that answers take, on a simulated server."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from headrace.pipeline.serving.service import AIM_S, LEAST, Admission


def serve(admission, clock, per_s, seconds):
    """Answer in order of arrival, with a request offered whenever there is room; returns the seconds that each took."""
    under_way, took = deque(), []
    end = clock[0] + seconds
    while clock[0] < end:
        while not admission.full:
            under_way.append(admission.begin())
        clock[0] += 1 / per_s
        begun = under_way.popleft()
        took.append(clock[0] - begun)
        admission.end(begun)
    for begun in under_way:
        admission.end(begun)
    return took


@pytest.mark.parametrize("per_s", [800, 1500, 3000])
def test_answers_come_in_time_whatever_the_machines_speed(per_s):
    clock = [0.0]
    admission = Admission(128, lambda: clock[0])
    serve(admission, clock, per_s, 3.0)
    took = serve(admission, clock, per_s, 3.0)
    assert np.percentile(took, 99) < 2 * max(AIM_S, LEAST / per_s)
    assert LEAST <= admission.bound < 128


def test_a_fast_server_keeps_the_whole_bound_and_a_slow_spell_is_forgotten():
    clock = [0.0]
    admission = Admission(128, lambda: clock[0])
    serve(admission, clock, 10_000, 1.0)
    assert admission.bound == 128
    serve(admission, clock, 1000, 2.0)
    assert admission.bound < 40
    serve(admission, clock, 10_000, 2.0)
    assert admission.bound == 128


def test_where_one_decision_takes_long_batches_stay_large():
    clock = [0.0]
    admission = Admission(64, lambda: clock[0], lambda: 3 * 0.2)
    for _ in range(200):  # 64 requests share a decision of 0.2 s
        begun = [admission.begin() for _ in range(64)]
        clock[0] += 0.2
        for each in begun:
            admission.end(each)
    assert admission.bound == 64


def test_a_small_bound_stays():
    clock = [0.0]
    admission = Admission(2, lambda: clock[0])
    for _ in range(100):
        begun = admission.begin()
        clock[0] += 9.0
        admission.end(begun)
    assert admission.bound == 2
    admission.begin()
    assert not admission.full
    admission.begin()
    assert admission.full and admission.under_way == 2

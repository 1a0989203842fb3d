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

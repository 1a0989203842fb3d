"""Work on several things at once: all of it is done, on every machine, and an error is told."""

from __future__ import annotations

import os
import threading

import pytest

from headrace.stages.environments.engines.unity.png import decode_each


@pytest.fixture(params=[1, 3, 64])
def cores(request, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(request.param)), raising=False)
    return request.param


@pytest.mark.parametrize("count", [0, 1, 2, 7, 100])
def test_each_number_is_done_once(cores, count):
    done = []
    decode_each(done.append, count)
    assert sorted(done) == list(range(count))


def test_an_error_is_raised(cores):
    def fail(number):
        if number in (5, 6, 7):
            raise ValueError(f"number {number}")

    with pytest.raises(ValueError, match="number [567]"):
        decode_each(fail, 9)


def test_several_cores_work_at_the_same_time(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    both = threading.Barrier(2)

    def wait_for_the_other(number: int) -> None:
        both.wait(30)

    decode_each(wait_for_the_other, 2)

"""Two functions run at once with a second thread, and one after the other without it."""

import threading

import numpy as np
import pytest
import torch

from headrace.stages.trainer.adam import flushed_denormals
from headrace.stages.trainer.fast.sac import SideThread


@pytest.fixture(autouse=True)
def threads_as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def beside(threads):
    made = SideThread()
    made.use(threads)
    return made


def test_two_threads_call_both_at_once():
    meeting = threading.Barrier(2, timeout=10)  # one after the other would never meet
    assert sorted(beside(2).both(meeting.wait, meeting.wait)) == [0, 1]


def test_the_second_thread_computes_as_the_first_one_does():
    def settings():
        return torch.get_num_threads(), np.geterr()["divide"], float(torch.tensor(1e-40) * 1)

    made = beside(4)
    with flushed_denormals(), np.errstate(all="ignore"):
        here, there = made.both(settings, settings)
    assert here == there == (2, "ignore", here[2])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("fails", [0, 1])
def test_a_failure_of_either_is_raised_when_neither_runs_any_more(threads, fails):
    done = []

    def part(number):
        if number == fails:
            raise ValueError("broken")
        done.append(number)

    with pytest.raises(ValueError, match="broken"):
        beside(threads).both(lambda: part(0), lambda: part(1))
    assert done == ([] if threads == 1 and fails == 0 else [1 - fails])

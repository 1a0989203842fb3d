"""A trainer's first updates choose the number of threads that it computes with."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.stages.trainer.thread_choice import ROUNDS, ThreadChoice, candidates_for


class Machine:
    """Takes as long for an update as was said for each number of threads."""

    def __init__(self, seconds, rows=100):
        self.seconds, self.rows = seconds, rows
        self.used, self.told = [], []
        self.choice = ThreadChoice(list(seconds), self.used.append, lambda *found: self.told.append(found))

    def update(self, times=1):
        for _ in range(times):
            self.choice.begin()
            self.choice.took(self.seconds[self.used[-1]] * self.rows / 100, self.rows)


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ({1: 1.0, 2: 0.6, 4: 0.4}, 4),
        ({1: 1.0, 2: 0.6, 4: 0.58}, 2),  # two more for nothing
        ({1: 1.0, 2: 0.97, 4: 0.96}, 1),
        ({1: 1.0, 2: 1.5, 4: 3.0}, 1),
    ],
)
def test_the_fastest_is_kept_unless_fewer_are_nearly_as_fast(seconds, best):
    machine = Machine(seconds)
    machine.update(1 + ROUNDS * 3)
    assert machine.choice.state == best
    assert machine.told == [(best, pytest.approx(seconds))]
    machine.update(5)
    assert machine.used[-5:] == [best] * 5
    assert len(machine.told) == 1


def test_a_choice_is_kept_over_a_resume_unless_the_yaml_names_a_number():
    machine = Machine({1: 1.0, 2: 0.6})
    machine.choice.keep(2)
    machine.update(3)
    assert machine.used == [2, 2, 2]
    pinned = Machine({3: 1.0})
    pinned.choice.keep(2)
    pinned.update(2)
    assert pinned.used == [3, 3]
    assert pinned.choice.state is None


@given(cores=st.integers(0, 300))
def test_numbers_rise_from_1_to_all_cores(cores):
    found = candidates_for(cores)
    assert found[0] == 1
    assert found[-1] == max(1, cores)
    assert found == sorted(set(found))

import pytest

from headrace.stages.errors import StageError
from headrace.stages.trainer import Schedule


def test_a_constant_schedule_stays():
    schedule = Schedule("constant", 0.2, 0.1, 100)
    assert [schedule.at(step) for step in (0, 50, 100, 1000)] == [0.2] * 4


@pytest.mark.parametrize(("step", "expected"), [(0, 0.2), (25, 0.175), (50, 0.15), (100, 0.1), (1000, 0.1)])
def test_a_linear_schedule_falls_to_its_floor_at_max_steps_and_stays_there(step, expected):
    assert Schedule("linear", 0.2, 0.1, 100).at(step) == pytest.approx(expected, rel=1e-12)


def test_a_value_that_starts_below_the_floor_does_not_rise_to_it():
    assert Schedule("linear", 0.0, 1e-5, 100).at(100) == 0.0


def test_an_unknown_kind_is_refused():
    with pytest.raises(StageError, match="'cosine'; expected linear or constant"):
        Schedule("cosine", 1.0, 0.0, 100)


def test_a_run_of_no_steps_is_refused():
    with pytest.raises(StageError, match="max_steps of at least 1, got 0"):
        Schedule("linear", 1.0, 0.0, 0)

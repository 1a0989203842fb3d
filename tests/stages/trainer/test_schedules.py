import pytest

from headrace.stages.trainer.protocol import Schedule


def test_a_constant_schedule_stays():
    schedule = Schedule("constant", 0.2, 0.1, 100)
    assert [schedule.at(step) for step in (0, 50, 100, 1000)] == [0.2] * 4


@pytest.mark.parametrize(("step", "expected"), [(0, 0.2), (25, 0.175), (50, 0.15), (100, 0.1), (1000, 0.1)])
def test_a_linear_schedule_falls_to_its_floor_at_max_steps_and_stays_there(step, expected):
    assert Schedule("linear", 0.2, 0.1, 100).at(step) == pytest.approx(expected, rel=1e-12)

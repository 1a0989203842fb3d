from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.stages.trainer.replay.pace import UpdateRatio


def updates_after(ratio, step):
    count = 0
    while ratio.is_due(step):
        ratio.count()
        count += 1
    return count


@given(
    st.sampled_from([0.25, 0.5, 1.0, 2.0, 3.0, 4.5, 64.0]),
    st.integers(0, 50),
    st.lists(st.integers(1, 100), min_size=1, max_size=20),
)
def test_the_ratio_holds_whatever_the_batches_are(steps_per_update, first_step, batches):
    ratio, step, updates = UpdateRatio(steps_per_update, first_step), 0, 0
    for rows in batches:
        step += rows
        updates += updates_after(ratio, step)
        assert updates == max(0, ceil((step - first_step) / steps_per_update))


@pytest.mark.parametrize(("step", "first"), [(21, 21), (5, 10)])
def test_another_ratio_than_the_saved_one_holds_from_then_on_only(step, first):
    ratio, other = UpdateRatio(2.0, 10), UpdateRatio(0.5, 0)
    updates_after(ratio, step)
    other.load_state_dict(ratio.state_dict(), step)
    assert not other.is_due(first)
    assert updates_after(other, first + 3) == 6

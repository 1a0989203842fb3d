from math import log

import pytest
import torch

from headrace.stages.trainer.on_policy.values import PolicyChange, change_of, measured
from headrace.stages.trainer.protocol import SINGLE_TRAINER, Replicas


class Rank(Replicas):
    """One of two replicas; what the other adds is given."""

    def __init__(self, rank, other=None):
        self.rank, self.size, self.other = rank, 2, other
        self.added = None

    def add_up(self, *tensors):
        (tensor,) = tensors
        self.added = tensor.clone()
        if self.other is not None:
            tensor += self.other


def ratios(*rows):
    return torch.tensor([[log(ratio) for ratio in row] for row in rows])


def k3(ratio):
    return ratio - 1 - log(ratio)


def test_the_measures_of_an_epoch_equal_those_by_hand():
    # Two minibatches of ratios 0.5, 1, 1.1 and 1.3: k3 is 0.1931, 0, 0.0047, 0.0376.
    found = change_of(measured([ratios([0.5], [1.0]), ratios([1.1], [1.3])], [1.0, 1.0], 0.2, SINGLE_TRAINER))
    assert found.approximate_kl == pytest.approx((0.193147 + 0.0 + 0.00469 + 0.037636) / 4, abs=1e-5)
    assert found.clip_fraction == pytest.approx(0.5), "0.5 and 1.3"
    assert (found.least_ratio, found.greatest_ratio) == (pytest.approx(0.5), pytest.approx(1.3))


def test_of_a_ratio_per_dimension_the_divergence_is_that_of_the_joint_action_and_each_ratio_is_clipped_by_itself():
    found = change_of(measured([ratios([1.5, 2.0], [1.0, 1.0])], [1.0], 0.2, SINGLE_TRAINER))
    assert found.approximate_kl == pytest.approx(k3(3.0) / 2, rel=1e-5)
    assert found.clip_fraction == pytest.approx(0.5)
    assert found.greatest_ratio == pytest.approx(2.0)


def test_the_estimate_is_the_divergence_that_it_estimates():
    # Both actions of a policy of (0.8, 0.2), as often as it takes them; the newer policy is (0.5, 0.5).
    rows = ratios(*[[0.5 / 0.8]] * 8, *[[0.5 / 0.2]] * 2)
    exact = 0.8 * log(0.8 / 0.5) + 0.2 * log(0.2 / 0.5)
    assert change_of(measured([rows], [1.0], 0.2, SINGLE_TRAINER)).approximate_kl == pytest.approx(exact, rel=1e-5)


def test_replicas_with_uneven_parts_find_what_one_with_all_rows_finds():
    whole = change_of(measured([ratios([0.5], [1.1], [1.4])], [1.0], 0.2, SINGLE_TRAINER))
    other = Rank(1)
    measured([ratios([1.1], [1.4])], [2 / 3], 0.2, other)
    together = change_of(measured([ratios([0.5])], [1 / 3], 0.2, Rank(0, other.added)))
    for name, value in whole.named().items():
        assert together.named()[name] == pytest.approx(value, rel=1e-6), name


@pytest.mark.parametrize(
    ("kl", "target", "expected"), [(0.0151, 0.01, True), (0.0149, 0.01, False), (9.0, None, False)]
)
def test_an_update_ends_beyond_half_as_much_again_as_the_target(kl, target, expected):
    assert PolicyChange(kl, 0.0, 1.0, 1.0).beyond(target) is expected

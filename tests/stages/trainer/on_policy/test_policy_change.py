from math import log

import pytest
import torch

from headrace.stages.trainer.ppo import policy_change
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


def combined(change):
    """KL, fraction clipped, and the least and the greatest ratio, over all replicas."""
    kl, clipped, least, greatest = change.double().T
    return kl.sum().item(), clipped.sum().item(), least.min().item(), greatest.max().item()


def k3(ratio):
    return ratio - 1 - log(ratio)


def test_the_measures_of_an_epoch_equal_those_of_the_formulae():
    # Two minibatches of ratios 0.5, 1, 1.1 and 1.3: k3 is 0.1931, 0, 0.0047, 0.0376; 0.5 and 1.3 are beyond 0.2.
    change = policy_change([ratios([0.5], [1.0]), ratios([1.1], [1.3])], [1.0, 1.0], 0.2, SINGLE_TRAINER)
    kl = (0.193147 + 0.0 + 0.00469 + 0.037636) / 4
    assert combined(change) == pytest.approx((kl, 0.5, 0.5, 1.3), abs=1e-5)


def test_the_divergence_is_that_of_the_joint_action_and_each_dimension_s_ratio_is_clipped_alone():
    change = policy_change([ratios([1.5, 2.0], [1.0, 1.0])], [1.0], 0.2, SINGLE_TRAINER)
    assert combined(change) == pytest.approx((k3(3.0) / 2, 0.5, 1.0, 2.0), rel=1e-5)


def test_the_estimate_equals_the_exact_divergence():
    # Both actions of a policy of (0.8, 0.2), as often as it takes them; the newer policy is (0.5, 0.5).
    rows = ratios(*[[0.5 / 0.8]] * 8, *[[0.5 / 0.2]] * 2)
    exact = 0.8 * log(0.8 / 0.5) + 0.2 * log(0.2 / 0.5)
    assert combined(policy_change([rows], [1.0], 0.2, SINGLE_TRAINER))[0] == pytest.approx(exact, rel=1e-5)


def test_replicas_with_uneven_parts_measure_what_one_trainer_with_all_rows_measures():
    whole = policy_change([ratios([0.5], [1.1], [1.4])], [1.0], 0.2, SINGLE_TRAINER)
    other = Rank(1)
    policy_change([ratios([1.1], [1.4])], [2 / 3], 0.2, other)
    together = policy_change([ratios([0.5])], [1 / 3], 0.2, Rank(0, other.added))
    assert combined(together) == pytest.approx(combined(whole), rel=1e-6)

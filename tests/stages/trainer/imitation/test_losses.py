"""Numbers worked out by hand."""

from math import exp, log, pi, tanh

import pytest
import torch

from headrace.config import NetworkSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.trainer.imitation.cloning import ImitationBatch, cloning_loss, log_likelihood


def design(actions, squashed=False):
    return PolicyDesign(BehaviorSpec("Test", (ObservationSpec("v", (1,)),), actions), NetworkSettings(), squashed)


def batch(continuous=(), choices=(), penalties=None, weights=None):
    n = max(len(continuous), len(choices))
    return ImitationBatch(
        Inputs(torch.zeros(n, 1)),
        torch.tensor(continuous).reshape(n, -1).float(),
        torch.tensor(choices).reshape(n, -1).long(),
        None if penalties is None else torch.tensor(penalties).float(),
        None if weights is None else torch.tensor(weights).float(),
    )


def test_of_continuous_actions_it_is_the_squared_error_of_the_mean():
    heads = torch.tensor([[1.0, 2.0], [0.0, -1.0]])
    loss = cloning_loss(heads, batch([[0.0, 3.0], [2.0, -1.0]]), design(ActionSpec(2)))
    assert loss.item() == pytest.approx(((1 + 1) / 2 + (4 + 0) / 2) / 2)


def test_of_a_squashed_policy_it_is_that_of_the_tanh_of_the_mean_and_leaves_the_spread_alone():
    heads = torch.tensor([[0.5, -2.0, 7.0, -9.0]], requires_grad=True)  # two means, two log sigmas
    loss = cloning_loss(heads, batch([[1.0, -1.0]]), design(ActionSpec(2), squashed=True))
    assert loss.item() == pytest.approx(((tanh(0.5) - 1) ** 2 + (tanh(-2.0) + 1) ** 2) / 2)
    loss.backward()
    assert (heads.grad[0, :2] != 0).all()
    assert (heads.grad[0, 2:] == 0).all()


def test_of_choices_it_is_the_cross_entropy_the_mean_over_branches():
    heads = torch.tensor([[log(1.0), log(3.0), log(2.0), log(2.0), log(4.0)]])
    loss = cloning_loss(heads, batch(choices=[[1, 2]]), design(ActionSpec(0, (2, 3))))
    assert loss.item() == pytest.approx(-(log(3 / 4) + log(4 / 8)) / 2)


def test_of_hybrid_actions_it_is_the_sum_of_both():
    heads = torch.tensor([[3.0, log(1.0), log(3.0)]])
    loss = cloning_loss(heads, batch([[1.0]], [[0]]), design(ActionSpec(1, (2,))))
    assert loss.item() == pytest.approx(4 - log(1 / 4))


def test_a_forbidden_choice_has_no_share_in_the_probabilities():
    heads = torch.tensor([[log(1.0), log(3.0), log(4.0)]])
    loss = cloning_loss(heads, batch(choices=[[0]], penalties=[[0, -1e8, 0]]), design(ActionSpec(0, (3,))))
    assert loss.item() == pytest.approx(-log(1 / 5))


def test_padding_does_not_count():
    heads = torch.tensor([[1.0], [5.0], [-2.0]])
    loss = cloning_loss(heads, batch([[0.0], [0.0], [0.0]], weights=[1, 0, 1]), design(ActionSpec(1)))
    assert loss.item() == pytest.approx((1 + 4) / 2)


def test_the_log_likelihood_is_that_of_all_actions_together():
    heads = torch.tensor([[0.5, -1.0, log(1.0), log(3.0)]])
    log_sigma = torch.tensor([0.0, log(2.0)])
    found = log_likelihood(heads, log_sigma, batch([[1.5, 3.0]], [[1]]), design(ActionSpec(2, (2,))))
    gaussians = exp(-0.5) / (2 * pi) ** 0.5 * exp(-0.5 * 2**2) / (2 * (2 * pi) ** 0.5)
    assert found.tolist() == pytest.approx([log(gaussians * 3 / 4)])

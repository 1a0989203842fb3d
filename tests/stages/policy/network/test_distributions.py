from math import log

import numpy as np
import pytest
import torch
from tensors import assert_close

from headrace.stages.policy.design import MASK_PENALTY
from headrace.stages.policy.network.layers import (
    categorical_log_probs,
    gaussian_entropy,
    gaussian_log_probs,
    squashed_sample,
)
from headrace.stages.policy.sampling import sample_squashed


@pytest.mark.lengthy
def test_gaussian_log_probabilities_match_numbers_worked_out_by_hand():
    mu = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    log_sigma = torch.tensor([0.0, log(2.0)])
    actions = torch.tensor([[1.0, 3.0], [0.0, 1.0]])
    # -z²/2 - log σ - log(2π)/2 with log(2π)/2 = 0.9189385 and log 2 = 0.6931472
    expected = [[-1.4189385, -2.1120857], [-0.9189385, -1.6120857]]
    assert_close(gaussian_log_probs(mu, log_sigma, actions), torch.tensor(expected))


def test_gaussian_entropy_is_the_mean_over_dimensions():
    # log(2πe)/2 = 1.4189385 for σ = 1; log σ more for other σ
    entropy = gaussian_entropy(torch.tensor([0.0, 2.0]))
    assert entropy.item() == pytest.approx(2.4189385, abs=1e-6)


def test_gaussian_gradients_match_numerical_ones():
    mu, log_sigma, actions = torch.randn(3, 2), torch.randn(2), torch.randn(3, 2)
    inputs = [t.double().requires_grad_() for t in (mu, log_sigma, actions)]
    assert torch.autograd.gradcheck(gaussian_log_probs, inputs)


def test_categorical_log_probabilities_and_entropy_match_numbers_worked_out_by_hand():
    logits = torch.tensor([[0.0, log(3.0)], [5.0, 5.0]])  # probabilities ¼, ¾ and ½, ½
    chosen, entropy = categorical_log_probs(logits, torch.tensor([[0], [1]]))
    assert_close(chosen, torch.tensor([[-1.3862944], [-0.6931472]]))
    assert entropy.item() == pytest.approx((0.5623351 + 0.6931472) / 2, abs=1e-6)


def test_masked_choices_do_not_affect_probabilities_entropy_or_gradients():
    logits = torch.tensor([[0.0, 9.0, log(3.0)]], requires_grad=True)
    penalties = torch.tensor([[0.0, float(MASK_PENALTY), 0.0]])
    chosen, entropy = categorical_log_probs(logits + penalties, torch.tensor([[2]]))
    assert chosen.item() == pytest.approx(-0.2876821, abs=1e-6)
    assert entropy.item() == pytest.approx(0.5623351, abs=1e-6)
    (chosen.sum() + entropy).backward()
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[0, 1] == 0.0


def test_the_entropy_of_a_certain_choice_is_zero_and_finite():
    _, entropy = categorical_log_probs(torch.tensor([[1e4, 0.0]]), torch.tensor([[0]]))
    assert entropy.item() == 0.0


def test_tanh_gaussian_log_probabilities_match_numbers_worked_out_by_hand():
    # u = 0.5 + e^0·1 = 1.5: log N = -0.5 - 0.9189385; 1 - tanh² 1.5 = 0.1807066, its log -1.7108805
    actions, log_probs = squashed_sample(torch.tensor([[0.5]]), torch.tensor([[0.0]]), torch.tensor([[1.0]]))
    assert actions.item() == pytest.approx(0.9051483, abs=1e-6)
    assert log_probs.item() == pytest.approx(-1.4189385 + 1.7108806, abs=1e-6)


@pytest.mark.parametrize("mean", [-30.0, -12.0, 12.0, 30.0])
def test_tanh_gaussian_log_probabilities_are_exact_if_actions_are_rounded_to_one(mean):
    log_sigma = torch.tensor([[-1.0]])
    actions, log_probs = squashed_sample(torch.tensor([[mean]]), log_sigma, torch.tensor([[0.5]]))
    assert abs(actions.item()) == 1.0
    u = np.float64(mean) + np.exp(-1.0) * 0.5
    # 1 - tanh² u = 4 / (e^u + e^-u)², which float64 holds far beyond this
    expected = -0.125 + 1.0 - 0.9189385332 - (log(4.0) - 2.0 * np.logaddexp(u, -u))
    assert log_probs.item() == pytest.approx(expected, rel=1e-6)


def test_tanh_gaussian_gradients_match_numerical_ones():
    random = torch.Generator().manual_seed(0)
    mu, log_sigma, noise = (torch.randn(4, 2, generator=random, dtype=torch.float64) for _ in range(3))
    inputs = (mu.requires_grad_(), log_sigma.requires_grad_(), noise)
    assert torch.autograd.gradcheck(squashed_sample, inputs)


def test_gradients_of_a_saturated_tanh_gaussian_are_finite():
    mu = torch.tensor([[40.0, -40.0]], requires_grad=True)
    log_sigma = torch.tensor([[0.0, 5.0]], requires_grad=True)
    actions, log_probs = squashed_sample(mu, log_sigma, torch.tensor([[1.0, -1.0]]))
    (actions.sum() + log_probs.sum()).backward()
    # log(1 - tanh² u) falls by 2 per unit of |u|, so the log-probability rises by 2
    assert_close(mu.grad, torch.tensor([[2.0, -2.0]]))
    assert torch.isfinite(log_sigma.grad).all()


def test_a_tanh_gaussian_draws_the_same_actions_as_the_actors_from_the_same_noise():
    mu, log_sigma = np.array([[0.3, -2.0, 15.0]], np.float32), np.array([[-0.7, 3.0, -25.0]], np.float32)
    log_probs = np.empty_like(mu)
    noise = np.random.default_rng(5).standard_normal(mu.shape, np.float32)
    drawn = sample_squashed(mu, log_sigma, noise, log_probs)
    actions, ours = squashed_sample(*map(torch.from_numpy, (mu, log_sigma, noise)))
    np.testing.assert_allclose(actions, drawn, rtol=1e-6)
    np.testing.assert_allclose(ours, log_probs, rtol=1e-5)

from math import log

import pytest
import torch

from stages.policy.distributions import categorical_log_probs, gaussian_entropy, gaussian_log_probs
from stages.policy.layout import MASK_PENALTY


def test_gaussian_log_probabilities_match_numbers_worked_out_by_hand():
    mu = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    log_sigma = torch.tensor([0.0, log(2.0)])
    actions = torch.tensor([[1.0, 3.0], [0.0, 1.0]])
    # -z²/2 - log σ - log(2π)/2 with log(2π)/2 = 0.9189385 and log 2 = 0.6931472
    expected = [[-1.4189385, -2.1120857], [-0.9189385, -1.6120857]]
    torch.testing.assert_close(gaussian_log_probs(mu, log_sigma, actions), torch.tensor(expected))


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
    torch.testing.assert_close(chosen, torch.tensor([[-1.3862944], [-0.6931472]]))
    assert entropy.item() == pytest.approx((0.5623351 + 0.6931472) / 2, abs=1e-6)


def test_forbidden_choices_count_neither_in_probability_nor_in_entropy_nor_in_gradients():
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

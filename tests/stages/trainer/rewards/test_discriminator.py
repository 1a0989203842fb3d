"""Gradient penalty, bottleneck and blending, against values worked out by hand."""

import math

import numpy as np
import pytest
import torch

from headrace.stages.trainer.rewards.gail import (
    blend,
    bottleneck_divergence,
    gradient_penalty,
    next_beta,
)


def test_penalty_of_a_linear_function_is_the_squared_excess_of_its_slope():
    slope = torch.tensor([3.0, 4.0], dtype=torch.float64, requires_grad=True)
    points = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    penalty = gradient_penalty(points @ slope, [points])
    assert penalty.item() == pytest.approx((5.0 - 1.0) ** 2)
    penalty.backward()
    # d(|w| - 1)²/dw = 2·(|w| - 1)·w/|w|
    np.testing.assert_allclose(slope.grad, [8 * 0.6, 8 * 0.8])


def test_penalty_looks_at_all_inputs_together():
    a, b = torch.zeros(2, 1, requires_grad=True), torch.zeros(2, 1, 2, requires_grad=True)
    outputs = 2.0 * a.sum(dim=1) + b.flatten(1) @ torch.tensor([1.0, 2.0])  # slopes 2, 1, 2: norm 3
    assert gradient_penalty(outputs, [a, b]).item() == pytest.approx(4.0)


def test_penalty_averages_over_rows_that_differ():
    points = torch.tensor([[1.0], [2.0]], requires_grad=True)
    outputs = points.square().sum(dim=1)  # slopes 2 and 4
    assert gradient_penalty(outputs, [points]).item() == pytest.approx((1.0 + 9.0) / 2)


def test_penalty_of_a_constant_has_a_finite_gradient():
    scale = torch.zeros(1, requires_grad=True)
    points = torch.ones(3, 1, requires_grad=True)
    penalty = gradient_penalty(points[:, 0] * scale, [points])
    penalty.backward()
    assert penalty.item() == pytest.approx(1.0, abs=1e-3)
    assert torch.isfinite(scale.grad).all()


def test_blending_goes_along_the_line_between_the_rows():
    expert, own = torch.tensor([[10.0, 0.0], [10.0, 0.0]]), torch.tensor([[0.0, 4.0], [0.0, 4.0]])
    assert blend(expert, own, torch.tensor([0.25, 1.0])).tolist() == [[2.5, 3.0], [10.0, 0.0]]


def test_blending_takes_bytes_as_encoders_do():
    expert, own = torch.full((1, 1, 2, 2), 255, dtype=torch.uint8), torch.zeros((1, 1, 2, 2), dtype=torch.uint8)
    assert blend(expert, own, torch.tensor([0.5])).flatten().tolist() == [0.5] * 4


def test_divergence_is_the_sum_of_both_sides_kullback_leibler():
    def divergence(mean, sigma):  # of N(mean, σ²) from N(0, 1)
        return 0.5 * (sigma**2 + mean**2 - 1.0 - math.log(sigma**2))

    sigma = torch.tensor([1.0, 0.5], dtype=torch.float64)
    expert = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    own = torch.tensor([[0.0, 2.0], [3.0, 0.0]], dtype=torch.float64)
    rows = [
        sum(divergence(side[row, i].item(), sigma[i].item()) for side in (expert, own) for i in (0, 1))
        for row in (0, 1)
    ]
    assert bottleneck_divergence(expert, own, sigma).item() == pytest.approx(sum(rows) / 2)


def test_beta_rises_with_divergence_above_half_a_nat_and_never_below_zero():
    assert next_beta(1.0, 2.5) == pytest.approx(1.001)
    assert next_beta(1.0, 0.1) == pytest.approx(0.9998)
    assert next_beta(0.0001, 0.1) == 0.0

"""Attention of few things and of many is the same function, that of the paper, with the same derivatives."""

from math import exp, sqrt

import pytest
import torch
from tensors import assert_close

from headrace.stages.policy.network.layers import attention_linear
from headrace.stages.policy.network.sets import HEADS, _attend, _attend_few, residual_attention

W = 8


@pytest.fixture(autouse=True)
def double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def layers():
    torch.manual_seed(0)
    return [attention_linear(W, W) for _ in range(3)]


def things(n, batch, seed=1):
    """Things [n·B, W], and which of them are there [n, B]; of the first batch none."""
    torch.manual_seed(seed)
    there = torch.rand(n, batch) < 0.7
    there[:, 0] = False
    return torch.randn(n * batch, W, requires_grad=True), there


@torch.no_grad()
def by_loops(x, there, query, key, value):
    n, batch = there.shape
    q, k, v = (layer(x).view(n, batch, HEADS, -1) for layer in (query, key, value))
    found = torch.zeros(n, batch, HEADS, W // HEADS)
    for b in range(batch):
        present = [j for j in range(n) if there[j, b]]
        for i in range(n):
            for h in range(HEADS):
                scores = [exp(float(q[i, b, h] @ k[j, b, h]) / sqrt(W)) for j in present] or [1.0] * n
                for score, j in zip(scores, present or range(n), strict=True):
                    found[i, b, h] += score / sum(scores) * v[j, b, h]
    return found.view(n * batch, W)


@pytest.mark.parametrize("attend", [_attend, _attend_few])
@pytest.mark.parametrize(("n", "batch"), [(1, 3), (2, 1), (4, 5)])
def test_both_ways_are_the_formula(attend, n, batch, layers):
    x, there = things(n, batch)
    assert_close(attend(x, there, *layers), by_loops(x, there, *layers))


@pytest.mark.parametrize(("n", "batch"), [(1, 3), (2, 1), (3, 4), (6, 2)])
def test_both_ways_have_the_same_derivatives_up_to_the_second(n, batch, layers):
    x, there = things(n, batch)
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    found = []
    for attend in (_attend, _attend_few):
        (slopes,) = torch.autograd.grad(attend(x, there, *layers).square().sum(), x, create_graph=True)
        found.append((slopes, *torch.autograd.grad(slopes.square().sum(), [x, *parameters])))
    for one, other in zip(*found, strict=True):
        assert_close(one, other)


def test_additional_absent_entities_do_not_change_the_output(layers):
    """Four things are few, twenty are many."""
    x, out = torch.randn(3, 4, W), attention_linear(W, W)
    query, key, value = layers
    few = residual_attention(x, torch.ones(3, 4, dtype=torch.bool), query, key, value, out)
    there = torch.arange(20).expand(3, 20) < 4
    many = residual_attention(torch.cat([x, torch.randn(3, 16, W)], dim=1), there, query, key, value, out)
    assert_close(few, many)

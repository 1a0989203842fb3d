"""A network with its optimizer: steps that are made, steps that are refused, and going on from a state."""

import pytest
import torch
from torch import nn

from headrace.stages.trainer.rewards.signal import TrainedNetwork


def make():
    network = TrainedNetwork(nn.Linear(2, 1), 0.1, "cpu")
    with torch.no_grad():
        network.module.weight.copy_(torch.tensor([[1.0, 2.0]]))
        network.module.bias.zero_()
    return network


@pytest.mark.parametrize(
    "loss",
    [lambda w: w.sum() * torch.nan, lambda w: (w * 0.0).sqrt().sum()],
    ids=["loss", "gradient"],
)
def test_a_step_that_is_not_finite_changes_nothing(loss, same):
    network = make()
    network.descend(network.module(torch.ones(1, 2)).sum())
    before = network.state_dict()
    assert not network.descend(loss(network.module.weight))
    assert same(network.state_dict(), before)


def test_a_restored_network_makes_the_same_steps(same):
    network, restored = make(), make()
    for scale in (1.0, 3.0):
        network.descend(scale * network.module(torch.ones(1, 2)).square().sum())
    restored.load_state_dict(network.state_dict())
    for each in (network, restored):
        each.descend(each.module(torch.tensor([[1.0, -2.0]])).square().sum())
    assert same(restored.state_dict(), network.state_dict())

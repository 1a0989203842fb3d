"""A perceptron as one step of autograd gives what its layers give, forwards and backwards."""

import pytest
import torch

from config import NetworkSettings
from queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from stages.policy.design import PolicyDesign
from stages.policy.network.body import NetworkBody
from stages.policy.network.inputs import Inputs
from stages.trainer.sac.perceptron import Perceptron


def made(activation, inputs, layers):
    spec = BehaviorSpec("Test", (ObservationSpec("vector", (inputs,)),), ActionSpec(2))
    design = PolicyDesign(spec, NetworkSettings(hidden_units=8, num_layers=layers, activation=activation))
    torch.manual_seed(3)
    body, head = NetworkBody(design).double(), torch.nn.Linear(8, 5).double()
    return body, head, Perceptron(design, body, head)


@pytest.mark.parametrize("activation", ["relu", "tanh", "elu", "swish"])
@pytest.mark.parametrize(("inputs", "layers"), [(3, 1), (3, 2), (40, 3)])
def test_outputs_and_all_gradients_are_those_of_the_layers(activation, inputs, layers):
    body, head, perceptron = made(activation, inputs, layers)
    parameters = [*body.parameters(), *head.parameters()]
    weights = torch.randn(6, 5, dtype=torch.float64)
    found = []
    for forward in (lambda x: head(body(Inputs(x))[0]), perceptron):
        x = torch.linspace(-2, 2, 6 * inputs, dtype=torch.float64).view(6, inputs).requires_grad_()
        out = forward(x)
        found.append([out, *torch.autograd.grad((out * weights).sum(), [x, *parameters])])
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected)


def test_frozen_it_passes_gradients_on_to_its_inputs_alone():
    body, head, perceptron = made("swish", 3, 2)
    x = torch.ones(4, 3, dtype=torch.float64, requires_grad=True)
    perceptron(x, frozen=True).sum().backward()
    y = torch.ones(4, 3, dtype=torch.float64, requires_grad=True)
    head(body(Inputs(y))[0]).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    assert head.weight.grad is not None
    head.weight.grad = None
    perceptron(torch.ones(4, 3, dtype=torch.float64, requires_grad=True), frozen=True).sum().backward()
    assert head.weight.grad is None

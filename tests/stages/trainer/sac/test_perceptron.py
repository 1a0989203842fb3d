"""A perceptron as one step of autograd gives what its layers give, forwards and backwards."""

import pytest
import torch
from tensors import assert_close

from headrace.config import NetworkSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.body import NetworkBody
from headrace.stages.policy.network.layers import ACTIVATIONS, Inputs
from headrace.stages.trainer.sac.networks import Perceptron


def made(activation, inputs, layers):
    spec = BehaviorSpec("Test", (ObservationSpec("vector", (inputs,)),), ActionSpec(2))
    design = PolicyDesign(spec, NetworkSettings(hidden_units=layers, activation=activation))
    torch.manual_seed(3)
    body, head = NetworkBody(design).double(), torch.nn.Linear(layers[-1], 5).double()
    return body, head, Perceptron(design, body, head)


def gradients(forward, parameters, x, weights):
    """Outputs, and the gradients of the inputs and of all parameters, which are added to what they were: 1."""
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    x = x.clone().requires_grad_()
    out = forward(x)
    (out * weights).sum().backward()
    return [out.detach(), x.grad, *(parameter.grad for parameter in parameters)]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("inputs", "layers"), [(3, [8]), (3, [8, 8]), (40, [8, 12, 8])])
def test_outputs_and_all_gradients_are_those_of_the_layers(activation, inputs, layers):
    body, head, perceptron = made(activation, inputs, layers)
    parameters = [*body.parameters(), *head.parameters()]
    for rows in (6, 4, 6):  # buffers of one pass must not show in the next one
        x = torch.linspace(-2, 2, rows * inputs, dtype=torch.float64).view(rows, inputs)
        weights = torch.randn(rows, 5, dtype=torch.float64)
        expected = gradients(lambda x: head(body(Inputs(x))[0]), parameters, x, weights)
        for ours, theirs in zip(gradients(perceptron, parameters, x, weights), expected, strict=True):
            assert_close(ours, theirs)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("wanted", [[1, 1, 1, 1], [1, 0, 0, 1], [0, 0, 0, 0]])
def test_frozen_it_passes_gradients_on_to_its_inputs_alone(activation, wanted):
    body, head, perceptron = made(activation, 3, [8, 8])
    parameters = [*body.parameters(), *head.parameters()]
    x = torch.linspace(-2, 2, 12, dtype=torch.float64).view(4, 3)
    weights = torch.tensor(wanted)[:, None] * torch.randn(4, 5, dtype=torch.float64)
    expected = gradients(lambda x: head(body(Inputs(x))[0]), parameters, x, weights)
    out, below, *rest = gradients(lambda x: perceptron(x, frozen=True), parameters, x, weights)
    assert_close(out, expected[0])
    assert_close(below, expected[1])
    assert all((gradient == 1.0).all() for gradient in rest)


def test_two_passes_one_of_them_frozen_do_not_disturb_each_other():
    body, head, perceptron = made("relu", 3, [8, 8])
    parameters = [*body.parameters(), *head.parameters()]
    x, y = (torch.randn(4, 3, dtype=torch.float64) for _ in range(2))
    expected = gradients(lambda x: head(body(Inputs(x))[0]), parameters, x, 1.0)

    def disturbed(x):
        out = perceptron(x)
        perceptron(y.clone().requires_grad_(), frozen=True).sum().backward()
        return out

    for ours, theirs in zip(gradients(disturbed, parameters, x, 1.0), expected, strict=True):
        assert_close(ours, theirs)

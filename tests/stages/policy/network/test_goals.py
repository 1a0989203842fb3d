import numpy as np
import pytest
import torch
from tensors import assert_close
from torch import nn

from headrace.config import NetworkSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.body import HyperLayer, NetworkBody
from headrace.stages.policy.network.layers import Inputs

STATE = ObservationSpec("state", (4,))
GOAL = ObservationSpec("goal", (2,), goal=True)


def body(*observations, **settings):
    torch.manual_seed(0)
    spec = BehaviorSpec("Test", observations, ActionSpec(2))
    return NetworkBody(PolicyDesign(spec, NetworkSettings(hidden_units=8, **settings)))


def swish(x):
    return x * torch.sigmoid(x)


def by_hand(layer, x, goal):
    """One row: the matrix made of the goal, then an ordinary layer."""
    hidden = swish(layer.hidden[2](swish(layer.hidden[0](goal))))
    hidden = (hidden - hidden.mean()) / (hidden.var(unbiased=False) + 1e-5).sqrt()
    matrix = (layer.matrix.weight @ hidden + layer.matrix.bias).reshape(len(x), -1)
    return x @ matrix + layer.bias


def test_the_goal_makes_the_matrix_that_the_input_goes_through():
    torch.manual_seed(0)
    layer = HyperLayer(5, 8, 3)
    x, goals = torch.randn(4, 5), torch.randn(4, 3)
    expected = torch.stack([by_hand(layer, x[row], goals[row]) for row in range(4)])
    assert_close(layer(x, goals), expected, rtol=1e-4, atol=1e-6)


def test_another_goal_is_another_mapping():
    layer = HyperLayer(5, 8, 3)
    x = torch.randn(1, 5)
    assert not torch.allclose(layer(x, torch.zeros(1, 3)), layer(x, torch.ones(1, 3)))
    assert not layer(torch.zeros(1, 5), torch.ones(1, 3)).any()  # through the matrix only


def test_initial_weights_are_those_of_ml_agents():
    torch.manual_seed(0)
    layer = HyperLayer(30, 64, 100)
    bound = np.sqrt(1 / (64 * 30))
    assert 0.99 * bound < layer.matrix.weight.abs().max().item() <= bound
    first, _, second, *_ = layer.hidden
    assert isinstance(first, nn.Linear)
    assert isinstance(second, nn.Linear)
    assert first.weight.std().item() == pytest.approx(1 / np.sqrt(100), rel=0.05)
    assert second.weight.std().item() == pytest.approx(1 / np.sqrt(64), rel=0.05)
    assert not any(bias.any() for bias in (layer.matrix.bias, layer.bias, first.bias))


def test_the_last_hidden_layer_is_the_one_that_the_goal_makes():
    made = body(STATE, GOAL, num_layers=2)
    inputs = Inputs(torch.randn(3, 6))
    first = swish(made.layers[0](inputs.vectors))  # the goal is among the ordinary inputs as well
    expected = swish(made.hyper(first, inputs.vectors[:, 4:]))
    assert_close(made(inputs)[0], expected)


def test_several_goals_stand_side_by_side_wherever_they_are_among_the_observations():
    made = body(GOAL, STATE, ObservationSpec("second", (3,), goal=True), num_layers=1)
    inputs = Inputs(torch.randn(3, 9))
    goals = torch.cat([inputs.vectors[:, :2], inputs.vectors[:, 6:]], dim=1)
    assert_close(made(inputs)[0], swish(made.hyper(inputs.vectors, goals)))


def test_a_picture_tells_a_goal_by_its_encoding():
    picture = ObservationSpec("target", (3, 6, 6), "uint8", goal=True)
    made = body(STATE, picture, num_layers=1, vis_encode_type="match3")
    image = torch.randint(0, 256, (2, 3, 6, 6), dtype=torch.uint8)
    inputs = Inputs(torch.randn(2, 4), (image,))
    encoding = made.encoders.images[0](image)
    features = torch.cat([inputs.vectors, encoding], dim=1)
    assert_close(made(inputs)[0], swish(made.hyper(features, encoding)))


def test_without_conditioning_a_goal_is_an_observation_like_others():
    made = body(STATE, GOAL, goal_conditioning_type="none")
    assert made.hyper is None
    assert made.layers[0].in_features == 6


def test_a_set_that_tells_a_goal_is_refused_with_a_way_out():
    goals = ObservationSpec("targets", (5, 3), goal=True)
    with pytest.raises(
        StageError, match=r"Test: observation 'targets' is a goal and a set.*goal_conditioning_type to none"
    ):
        body(STATE, goals)
    assert body(STATE, goals, goal_conditioning_type="none").encoding_size == 8

"""Initial weights and deviations that the settings ask for, of networks of all kinds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensors import assert_close

from headrace.config import NetworkSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.actor_critic import ActorCritic, make_actor_critic, orthogonalised
from headrace.stages.policy.network.layers import Inputs

BOTH = ActionSpec(2, (3,))
VECTOR, IMAGE = ObservationSpec("vector", (12,)), ObservationSpec("image", (3, 20, 24), "uint8")


def network_of(observation=VECTOR, actions=BOTH, shared=False, signals=1, **settings):
    given = NetworkSettings.model_validate({"hidden_units": 16, "num_layers": 2, **settings})
    design = PolicyDesign(BehaviorSpec("Test", (observation,), actions), given)
    return make_actor_critic(design, signals, shared, np.random.default_rng(0))


@pytest.mark.parametrize("shape", [(16, 12), (12, 16), (16, 16), (1, 16)])
def test_matrices_are_those_of_torch_for_the_same_normal_numbers(shape):
    torch.manual_seed(0)
    drawn = torch.empty(shape).normal_()
    torch.manual_seed(0)
    expected = torch.nn.init.orthogonal_(torch.empty(shape), 1.5)
    np.testing.assert_allclose(orthogonalised(drawn.numpy(), 1.5), expected, atol=1e-6)


def assert_orthogonal(weight, gain):
    """Assert that the rows or columns [out, in], whichever are fewer, are orthogonal and as long as the gain."""
    flat = weight.reshape(len(weight), -1)
    fewer = flat if flat.shape[0] <= flat.shape[1] else flat.T
    np.testing.assert_allclose(fewer @ fewer.T, gain**2 * np.eye(len(fewer)), atol=1e-5)


@pytest.mark.parametrize("shared", [False, True])
def test_perceptrons_have_the_gains_of_hidden_layers_actions_and_values(shared):
    weights = network_of(shared=shared, signals=2, initial_weights="orthogonal").state_dict()
    assert len(weights["body.0.weight"]) == (1 if shared else 2)
    for layer in range(2):
        for tower in weights[f"body.{layer}.weight"]:
            assert_orthogonal(tower.T, np.sqrt(2))
    assert_orthogonal(weights["action.weight"].T, 0.01)
    for head in weights["value.weight"].T:
        assert_orthogonal(head[None], 1.0)
    assert not any(np.any(weight) for name, weight in weights.items() if "bias" in name)


def test_image_networks_have_the_gains_of_hidden_layers_actions_and_values():
    weights = network_of(IMAGE, initial_weights="orthogonal").state_dict()
    for body in ("actor.body", "critic"):
        for name, weight in weights.items():
            if name.startswith(body) and name.endswith("weight"):
                assert_orthogonal(weight, np.sqrt(2))
    assert_orthogonal(weights["actor.action.weight"], 0.01)
    assert_orthogonal(weights["value.weight"], 1.0)


@pytest.mark.parametrize("observation", [VECTOR, IMAGE], ids=["vector", "image"])
def test_torchs_own_weights_and_biases_fill_the_range_that_the_inputs_give(observation):
    network = network_of(observation, hidden_units=64, initial_weights="torch")
    weights = network.state_dict()
    inputs = {}
    for name, weight in weights.items():
        if name.endswith("weight"):
            stacked = isinstance(network, ActorCritic)
            inputs[name.removesuffix("weight")] = weight.shape[-2] if stacked else weight[0].size
    for name, weight in weights.items():
        if "log_sigma" not in name:
            bound = inputs[name.rpartition(".")[0] + "."] ** -0.5
            found = np.abs(np.asarray(weight)).max()
            assert found <= bound, name
            assert found > 0.9 * bound or weight.size < 10, name


@pytest.mark.parametrize("observation", [VECTOR, IMAGE], ids=["vector", "image"])
def test_continuous_actions_begin_with_the_configured_deviation(observation):
    np.testing.assert_allclose(network_of(observation, initial_log_std=-2.0).log_sigma.detach(), [-2.0, -2.0])
    np.testing.assert_array_equal(network_of(observation).log_sigma.detach(), [0.0, 0.0])


@pytest.mark.parametrize(("units", "widths"), [([24, 20, 8], [24, 20, 8]), (24, [24, 24])])
@pytest.mark.parametrize("observation", [VECTOR, IMAGE], ids=["vector", "image"])
def test_a_critic_may_have_other_layers(observation, units, widths):
    weights = network_of(observation, critic_hidden_units=units).state_dict()

    def sizes(body):
        return [len(w) for name, w in weights.items() if name.startswith(f"{body}.layers") and name.endswith("weight")]

    assert sizes("actor.body") == [16, 16]
    assert sizes("critic") == widths
    assert weights["value.weight"].shape == (1, widths[-1])


def test_a_shared_body_and_equal_layers_stay_a_stack_of_towers():
    assert isinstance(network_of(shared=True, critic_hidden_units=24), ActorCritic)
    assert isinstance(network_of(critic_hidden_units=16), ActorCritic)


def test_a_network_with_another_critic_acts_and_judges():
    network, inputs = network_of(critic_hidden_units=[24]), Inputs(torch.randn(5, 12))
    heads, values = network(inputs)
    assert (heads.shape, values.shape) == ((5, 5), (5, 1))
    assert_close(network.evaluate(inputs)[0], values)

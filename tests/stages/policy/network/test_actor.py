import numpy as np
import pytest
import torch

from headrace.config import NetworkSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.design import PolicyDesign, policy_layout
from headrace.stages.policy.network.body import ActorNetwork
from headrace.stages.policy.network.flat_parameters import FlatParameters, seeded
from headrace.stages.policy.network.layers import Inputs

PLAIN = (ObservationSpec("vector", (6,)),)
IMAGE = (ObservationSpec("vector", (6,)), ObservationSpec("camera", (20, 20, 1), "uint8", channels_last=True))


def make(actions, observations=PLAIN, squashed=False, seed=0, **settings):
    spec = BehaviorSpec("Test", observations, actions)
    design = PolicyDesign(spec, NetworkSettings(**{"hidden_units": 8, **settings}), squashed)
    return seeded(np.random.default_rng(seed), lambda: ActorNetwork(design)), design


@pytest.mark.parametrize(
    ("actions", "squashed", "heads"),
    [
        (ActionSpec(2), False, 2),
        (ActionSpec(2), True, 4),
        (ActionSpec(0, (3, 2)), False, 5),
        (ActionSpec(2, (3,)), True, 7),
    ],
)
def test_the_actor_s_heads_match_its_action_distribution(actions, squashed, heads):
    actor, _ = make(actions, squashed=squashed)
    assert actor(Inputs(torch.randn(4, 6)))[0].shape == (4, heads)
    assert (actor.log_sigma is None) == (squashed or not actions.continuous_size)


def test_heads_start_small_as_in_ml_agents():
    actor, _ = make(ActionSpec(30, (40,)), squashed=True, hidden_units=400)
    std = 1 / np.sqrt(400)
    assert actor.action.weight[:60].std().item() == pytest.approx(0.2 * std, rel=0.03)
    assert actor.action.weight[60:].std().item() == pytest.approx(0.1 * std, rel=0.03)
    assert not actor.action.bias.any()


@pytest.mark.parametrize("squashed", [False, True])
@pytest.mark.parametrize("observations", [PLAIN, IMAGE], ids=["plain", "image"])
def test_acting_tensors_are_those_of_the_layout(squashed, observations):
    actor, design = make(ActionSpec(2, (3,)), observations, squashed)
    shapes = [(name, tensor.shape) for name, tensor in actor.acting_tensors().items()]
    assert shapes == list(policy_layout(design))


def test_acting_tensors_of_a_plain_design_are_matrices_to_multiply_inputs_with():
    actor, _ = make(ActionSpec(2, (3,)), activation="tanh", num_layers=2)
    x = torch.randn(4, 6)
    tensors, y = actor.acting_tensors(), x.numpy()
    for layer in range(2):
        y = np.tanh(y @ tensors[f"body.{layer}.weight"] + tensors[f"body.{layer}.bias"])
    y = y @ tensors["action.weight"] + tensors["action.bias"]
    np.testing.assert_allclose(actor(Inputs(x))[0].detach().numpy(), y, atol=1e-5)


@pytest.mark.parametrize("observations", [PLAIN, IMAGE], ids=["plain", "image"])
def test_an_actor_that_took_up_the_tensors_of_another_acts_like_it(observations):
    first, _ = make(ActionSpec(2, (3,)), observations)
    second, _ = make(ActionSpec(2, (3,)), observations, seed=1)
    flat = FlatParameters(second)
    second.load_acting({"normalizer.mean": np.zeros(6), "normalizer.inverse_std": np.ones(6), **first.acting_tensors()})
    parameters = dict(first.named_parameters())
    assert all(torch.equal(parameter, parameters[name]) for name, parameter in second.named_parameters())
    assert torch.equal(flat.values, torch.cat([p.flatten() for p in first.parameters()]))


def test_tensors_of_another_actor_are_refused_by_name_and_change_nothing():
    actor, _ = make(ActionSpec(2))
    other, _ = make(ActionSpec(2), squashed=True, seed=1)
    before = actor.acting_tensors()
    with pytest.raises(StageError, match=r"policy: expected tensor action.weight \(8, 2\), got \(8, 4\)"):
        actor.load_acting(other.acting_tensors())
    assert all(np.array_equal(array, before[name]) for name, array in actor.acting_tensors().items())

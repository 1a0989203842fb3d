import numpy as np
import pytest
import torch

from config import NetworkSettings
from queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from stages.errors import StageError
from stages.policy import policy_layout
from stages.policy.network import ActorCritic


def make(actions, shared=False, signals=1, inputs=6, seed=0, **settings):
    spec = BehaviorSpec("Test", (ObservationSpec("o", (inputs,)),), actions)
    network_settings = NetworkSettings(**settings)
    network = ActorCritic(spec, network_settings, signals, shared, np.random.default_rng(seed))
    return network, spec, network_settings


def by_hand(x, state, tower, layers, head):
    for layer in range(layers):
        x = np.tanh(x @ state[f"body.{layer}.weight"][tower] + state[f"body.{layer}.bias"][tower])
    return x @ state[f"{head}.weight"] + state[f"{head}.bias"]


@pytest.mark.parametrize("shared", [False, True])
def test_the_forward_pass_is_that_of_two_towers_written_out(shared):
    network, _, _ = make(ActionSpec(2, (3,)), shared, signals=2, hidden_units=8, num_layers=3, activation="tanh")
    x = np.random.default_rng(1).normal(size=(5, 6)).astype(np.float32)
    heads, values = network(torch.from_numpy(x))
    state = network.state_dict()
    np.testing.assert_allclose(heads.detach().numpy(), by_hand(x, state, 0, 3, "action"), atol=1e-5)
    np.testing.assert_allclose(values.detach().numpy(), by_hand(x, state, 0 if shared else 1, 3, "value"), atol=1e-5)


def test_the_critics_gradient_leaves_the_actor_alone_unless_they_share_a_body():
    for shared in (False, True):
        network, _, _ = make(ActionSpec(2), shared, hidden_units=8)
        network(torch.ones(4, 6))[1].sum().backward()
        actor = network.parameters["body.0.weight"].grad[0]
        assert bool(actor.abs().sum() > 0) is shared


def test_parameters_and_gradients_are_views_of_two_flat_vectors():
    network, _, _ = make(ActionSpec(1, (2,)), hidden_units=8)
    heads, values = network(torch.ones(4, 6))
    (heads.sum() + values.sum()).backward()
    parts = [p.grad.reshape(-1) for p in network.parameters.values()]
    assert torch.equal(network.gradients, torch.cat(parts))
    network.values.zero_()
    assert all(not p.any() for p in network.parameters.values())


def test_initial_weights_have_the_spread_that_ml_agents_gives_them():
    network, _, _ = make(ActionSpec(4, (5,)), inputs=100, hidden_units=256, signals=1)
    state = network.state_dict()
    assert state["body.0.weight"].std() == pytest.approx(1 / np.sqrt(100), rel=0.03)
    assert state["body.1.weight"].std() == pytest.approx(1 / np.sqrt(256), rel=0.03)
    assert state["action.weight"][:, :4].std() == pytest.approx(0.2 / np.sqrt(256), rel=0.1)
    assert state["action.weight"][:, 4:].std() == pytest.approx(0.1 / np.sqrt(256), rel=0.1)
    bound = np.sqrt(6 / 257)
    assert 0.9 * bound < np.abs(state["value.weight"]).max() <= bound
    for name in ("body.0.bias", "body.1.bias", "action.bias", "value.bias", "log_sigma"):
        assert not state[name].any()
    assert not np.array_equal(state["body.1.weight"][0], state["body.1.weight"][1])


def test_one_seed_gives_one_network():
    first, second = (make(ActionSpec(2), seed=3)[0] for _ in range(2))
    assert torch.equal(first.values, second.values)
    assert not torch.equal(first.values, make(ActionSpec(2), seed=4)[0].values)


@pytest.mark.parametrize("actions", [ActionSpec(2), ActionSpec(0, (3, 2)), ActionSpec(1, (2,))])
@pytest.mark.parametrize("shared", [False, True])
def test_the_acting_tensors_are_those_of_the_layout(actions, shared):
    network, spec, settings = make(actions, shared, hidden_units=8)
    shapes = {name: tensor.shape for name, tensor in network.acting_tensors().items()}
    assert shapes == dict(policy_layout(spec, settings))


def test_loading_weights_of_another_size_names_the_tensor_and_changes_nothing():
    network, _, _ = make(ActionSpec(2), hidden_units=8)
    other, _, _ = make(ActionSpec(2), hidden_units=16, seed=1)
    before = network.values.clone()
    with pytest.raises(StageError, match=r"'body.0.weight': expected shape \(2, 6, 8\), got \(2, 6, 16\)"):
        network.load(other.state_dict())
    assert torch.equal(network.values, before)


def test_loading_weights_with_a_tensor_missing_or_unknown_names_it():
    network, _, _ = make(ActionSpec(2), hidden_units=8)
    state = network.state_dict()
    with pytest.raises(StageError, match=r"'log_sigma' is missing"):
        network.load({name: array for name, array in state.items() if name != "log_sigma"})
    with pytest.raises(StageError, match=r"'extra' is not part of this network"):
        network.load({**state, "extra": np.zeros(3)})


def test_an_unknown_activation_is_refused():
    settings = NetworkSettings.model_construct(**{**NetworkSettings().model_dump(), "activation": "gelu"})
    spec = BehaviorSpec("Test", (ObservationSpec("o", (3,)),), ActionSpec(2))
    with pytest.raises(StageError, match="'gelu' is not one of swish, tanh, relu, elu"):
        ActorCritic(spec, settings, 1, False, np.random.default_rng(0))

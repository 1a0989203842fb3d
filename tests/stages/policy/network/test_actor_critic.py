import numpy as np
import pytest
import torch
from tensors import assert_close

from headrace.config import NetworkSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.design import PolicyDesign, policy_layout
from headrace.stages.policy.network.actor_critic import ActorCritic
from headrace.stages.policy.network.flat_parameters import write_named
from headrace.stages.policy.network.layers import Inputs


def make(actions, shared=False, signals=1, inputs=6, seed=0, **settings):
    spec = BehaviorSpec("Test", (ObservationSpec("o", (inputs,)),), actions)
    design = PolicyDesign(spec, NetworkSettings(**settings))
    return ActorCritic(design, signals, shared, np.random.default_rng(seed)), design


def of(*shape):
    return Inputs(torch.ones(shape))


def by_hand(x, state, tower, layers, head):
    for layer in range(layers):
        x = np.tanh(x @ state[f"body.{layer}.weight"][tower] + state[f"body.{layer}.bias"][tower])
    return x @ state[f"{head}.weight"] + state[f"{head}.bias"]


@pytest.mark.parametrize("sizes", [{"hidden_units": 8, "num_layers": 3}, {"hidden_units": [8, 3, 5]}])
@pytest.mark.parametrize("shared", [False, True])
def test_the_forward_pass_is_that_of_two_towers_written_out(shared, sizes):
    network, _ = make(ActionSpec(2, (3,)), shared, signals=2, activation="tanh", **sizes)
    x = np.random.default_rng(1).normal(size=(5, 6)).astype(np.float32)
    heads, values = network(Inputs(torch.from_numpy(x)))
    state = network.state_dict()
    np.testing.assert_allclose(heads.detach().numpy(), by_hand(x, state, 0, 3, "action"), atol=1e-5)
    np.testing.assert_allclose(values.detach().numpy(), by_hand(x, state, 0 if shared else 1, 3, "value"), atol=1e-5)


def test_the_critics_gradient_leaves_the_actor_alone_unless_they_share_a_body():
    for shared in (False, True):
        network, _ = make(ActionSpec(2), shared, hidden_units=8)
        network(of(4, 6))[1].sum().backward()
        actor = network.parameters["body.0.weight"].grad[0]
        assert bool(actor.abs().sum() > 0) is shared


def test_parameters_and_gradients_are_views_of_two_flat_vectors():
    network, _ = make(ActionSpec(1, (2,)), hidden_units=8)
    heads, values = network(of(4, 6))
    (heads.sum() + values.sum()).backward()
    parts = [p.grad.reshape(-1) for p in network.parameters.values()]
    assert torch.equal(network.gradients, torch.cat(parts))
    network.values.zero_()
    assert all(not p.any() for p in network.parameters.values())


def test_initial_weights_have_the_spread_that_ml_agents_gives_them():
    network, _ = make(ActionSpec(4, (5,)), inputs=100, hidden_units=256, signals=1)
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


def test_the_seed_determines_the_network():
    first, second = (make(ActionSpec(2), seed=3)[0] for _ in range(2))
    assert torch.equal(first.values, second.values)
    assert not torch.equal(first.values, make(ActionSpec(2), seed=4)[0].values)


@pytest.mark.parametrize("actions", [ActionSpec(2), ActionSpec(0, (3, 2)), ActionSpec(1, (2,))])
@pytest.mark.parametrize("shared", [False, True])
def test_the_acting_tensors_are_those_of_the_layout(actions, shared):
    network, design = make(actions, shared, hidden_units=8)
    shapes = {name: tensor.shape for name, tensor in network.acting_tensors().items()}
    assert shapes == dict(policy_layout(design))


def test_loading_weights_of_another_size_names_the_tensor_and_changes_nothing():
    network, _ = make(ActionSpec(2), hidden_units=8)
    other, _ = make(ActionSpec(2), hidden_units=16, seed=1)
    before = network.values.clone()
    with pytest.raises(StageError, match=r"expected tensor body.0.weight \(2, 6, 8\), got \(2, 6, 16\)"):
        network.load(other.state_dict())
    assert torch.equal(network.values, before)


def test_loading_weights_with_a_tensor_missing_or_unknown_names_it():
    network, _ = make(ActionSpec(2), hidden_units=8)
    state = network.state_dict()
    with pytest.raises(StageError, match=r"tensor log_sigma \(2,\), got none"):
        network.load({name: array for name, array in state.items() if name != "log_sigma"})
    with pytest.raises(StageError, match=r"tensor extra to be absent, got \(3,\)"):
        network.load({**state, "extra": np.zeros(3)})


@pytest.mark.parametrize("shared", [False, True])
def test_each_of_the_two_alone_gives_what_the_forward_pass_does_and_no_memory(shared):
    network, _ = make(ActionSpec(2, (3,)), shared, signals=2, hidden_units=8)
    inputs = Inputs(torch.randn(4, 6))
    heads, values = network(inputs)
    assert_close(network.heads(inputs), heads)
    found, memories = network.evaluate(inputs)
    assert_close(found, values)
    assert memories is None


@pytest.mark.parametrize("shared", [False, True])
def test_loading_acting_weights_keeps_the_critic_s_own_weights(shared):
    network, _ = make(ActionSpec(2, (3,)), shared, hidden_units=8)
    other, _ = make(ActionSpec(2, (3,)), shared, hidden_units=8, seed=1)
    value_before = network.state_dict()["value.weight"]
    write_named(network.acting_views, other.acting_tensors(), "policy")
    x = Inputs(torch.randn(5, 6))
    assert torch.equal(network(x)[0], other(x)[0])
    assert np.array_equal(network.state_dict()["value.weight"], value_before)
    if not shared:  # the critic's tower stays as well
        assert not torch.equal(network(x)[1], other(x)[1])


def test_a_policy_of_another_size_is_not_taken_up():
    network, _ = make(ActionSpec(2), hidden_units=8)
    other, _ = make(ActionSpec(3), hidden_units=8, seed=1)
    before = network.values.clone()
    with pytest.raises(StageError, match=r"policy: expected tensor action.weight \(8, 2\), got \(8, 3\)"):
        write_named(network.acting_views, other.acting_tensors(), "policy")
    assert torch.equal(network.values, before)


@pytest.mark.parametrize(
    ("observation", "settings", "squashed"),
    [
        (ObservationSpec("o", (8, 8, 3)), {}, False),
        (ObservationSpec("o", (3,), goal=True), {}, False),
        (ObservationSpec("o", (3,)), {"memory": {}}, False),
        (ObservationSpec("o", (3,)), {}, True),
    ],
)
def test_an_unsupported_design_is_refused(observation, settings, squashed):
    spec = BehaviorSpec("Test", (observation,), ActionSpec(2))
    with pytest.raises(StageError, match="make_actor_critic returns a network that fits"):
        ActorCritic(PolicyDesign(spec, NetworkSettings(**settings), squashed), 1, False, np.random.default_rng(0))

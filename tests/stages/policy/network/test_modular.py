import numpy as np
import pytest
import torch
from tensors import assert_close

from headrace.config import NetworkSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.design import PolicyDesign, policy_layout
from headrace.stages.policy.network.actor_critic import ActorCritic, ModularActorCritic, make_actor_critic
from headrace.stages.policy.network.flat_parameters import write_named
from headrace.stages.policy.network.layers import Inputs

VECTOR = ObservationSpec("vector", (6,))
CAMERA = ObservationSpec("camera", (3, 20, 20), "uint8")
ACTIONS = ActionSpec(2, (3,))
MEMORY = {"memory": {"sequence_length": 4, "memory_size": 12}}


def design(*observations, squashed=False, **settings):
    return PolicyDesign(
        BehaviorSpec("Test", observations or (VECTOR,), ACTIONS),
        NetworkSettings(**{"hidden_units": 8, **settings}),
        squashed,
    )


def make(made, signals=1, shared=False, seed=0):
    return ModularActorCritic(made, signals, shared, np.random.default_rng(seed))


def sequences(rows=8, length=4):
    return Inputs(torch.randn(rows, 6), (), torch.randn(rows, 5), torch.randn(rows // length, 12), length)


def picture(rows=4):
    return Inputs(torch.randn(rows, 6), (torch.randint(0, 256, (rows, 3, 20, 20), dtype=torch.uint8),))


def as_fast(state, layers):
    """The weights of a modular network by the names of the fast one: towers stacked, matrices [in, out]."""
    fast = {}
    towers = ["actor.body"] + (["critic"] if "critic.layers.0.weight" in state else [])
    for layer in range(layers):
        names = [f"{tower}.layers.{2 * layer}" for tower in towers]
        fast[f"body.{layer}.weight"] = np.stack([state[f"{name}.weight"].T for name in names])
        fast[f"body.{layer}.bias"] = np.stack([state[f"{name}.bias"][None] for name in names])
    for ours, theirs in (("action", "actor.action"), ("value", "value")):
        fast[f"{ours}.weight"] = state[f"{theirs}.weight"].T
        fast[f"{ours}.bias"] = state[f"{theirs}.bias"]
    return {**fast, "log_sigma": state["actor.log_sigma"]}


@pytest.mark.parametrize("shared", [False, True])
def test_on_a_plain_design_it_agrees_with_the_fast_network(shared):
    made = design(activation="tanh", num_layers=3)
    modular = make(made, 2, shared)
    modular.log_sigma.data.normal_()
    fast = ActorCritic(made, 2, shared, np.random.default_rng(1))
    fast.load(as_fast(modular.state_dict(), 3))
    inputs = Inputs(torch.randn(5, 6))
    for ours, theirs in zip(modular(inputs), fast(inputs), strict=True):
        assert_close(ours, theirs)
    assert_close(modular.evaluate(inputs)[0], fast.evaluate(inputs)[0])
    assert_close(modular.heads(inputs), fast.heads(inputs))
    assert [part.sum() for part in modular.parts] == [part.sum() for part in fast.parts]
    acting = fast.acting_tensors()
    assert sorted(modular.acting_tensors()) == sorted(acting)
    assert all(np.array_equal(array, acting[name]) for name, array in modular.acting_tensors().items())
    for network in (modular, fast):
        heads, values = network(inputs)
        (heads.square().sum() + values.square().sum()).backward()
    gradients = {name: view.numpy() for name, view in modular.named_views(modular.gradients).items()}
    for name, gradient in as_fast(gradients, 3).items():
        assert_close(fast.parameters[name].grad, torch.from_numpy(gradient))


def test_parameters_and_gradients_are_views_of_two_flat_vectors():
    network = make(design(VECTOR, CAMERA), 2)
    heads, values = network(picture())
    (heads.sum() + values.sum()).backward()
    assert torch.equal(network.gradients, torch.cat([p.grad.reshape(-1) for p in network.parameters.values()]))
    assert {n: v.shape for n, v in network.named_views(network.values).items()} == {
        n: p.shape for n, p in network.parameters.items()
    }
    network.values.zero_()
    assert all(not p.any() for p in network.parameters.values())


@pytest.mark.parametrize("shared", [False, True])
def test_the_critics_gradient_leaves_the_actor_alone_unless_they_share_a_body(shared):
    network = make(design(VECTOR, CAMERA), shared=shared)
    network(picture())[1].sum().backward()
    reached = {name for name, p in network.parameters.items() if p.grad.any()}
    assert any(name.startswith("actor.body.") for name in reached) is shared
    assert any(name.startswith("critic.") for name in reached) is not shared
    assert not any(name.startswith("actor.action.") for name in reached)


@pytest.mark.parametrize("shared", [False, True])
def test_its_parts_tell_what_is_learned_by_actor_and_critic(shared):
    network = make(design(VECTOR, CAMERA, **MEMORY), shared=shared)
    inputs = sequences(4)._replace(others=picture().others)
    for output, part in zip(network(inputs, torch.randn(1, 12)), network.parts, strict=not shared):
        network.gradients.zero_()
        output.square().sum().backward()
        assert network.gradients.any()
        assert not (network.gradients * (1.0 - part)).any()


def test_actor_and_critic_start_from_different_weights():
    parameters = make(design(VECTOR, CAMERA)).parameters
    assert not torch.equal(parameters["actor.body.layers.0.weight"], parameters["critic.layers.0.weight"])


def test_every_signals_value_head_is_xavier_uniform_by_itself():
    state = make(design(VECTOR, CAMERA, hidden_units=256), signals=8).state_dict()
    bound = np.sqrt(6 / 257)
    assert state["value.weight"].shape == (8, 256)
    assert 0.98 * bound < np.abs(state["value.weight"]).max() <= bound
    assert not state["value.bias"].any()


def test_the_actors_memory_moves_the_heads_and_the_critics_the_values():
    network, inputs = make(design(**MEMORY)), sequences()
    memories = torch.randn(2, 12)
    heads, values = network(inputs, memories)
    assert torch.equal(network(inputs, memories + 1)[0], heads)
    assert not torch.allclose(network(inputs, memories + 1)[1], values)
    other = inputs._replace(memories=inputs.memories + 1)
    assert not torch.allclose(network(other, memories)[0], heads)
    assert torch.equal(network(other, memories)[1], values)
    assert_close(network(inputs)[1], network(inputs, torch.zeros(2, 12))[1])


def test_each_of_the_two_alone_gives_what_the_forward_pass_does():
    network, inputs = make(design(**MEMORY)), sequences()
    memories = torch.randn(2, 12)
    assert_close(network.heads(inputs), network(inputs, memories)[0])
    values, after = network.evaluate(inputs._replace(memories=memories))
    assert_close(values, network(inputs, memories)[1])
    assert after.shape == (2, 12)


@pytest.mark.parametrize("shared", [False, True])
def test_values_of_a_sequence_equal_those_of_its_steps_with_the_critics_memory_carried(shared):
    network, inputs = make(design(**MEMORY), 2, shared), sequences()
    values, after = network.evaluate(inputs)
    memories = inputs.memories
    for step in range(4):
        rows = torch.tensor([step, 4 + step])
        single = Inputs(inputs.vectors[rows], (), inputs.previous_actions[rows], memories)
        of_step, memories = network.evaluate(single)
        assert_close(of_step, values[rows])
    assert_close(memories, after)


def test_a_critic_that_shares_the_body_shares_the_memory():
    network, inputs = make(design(**MEMORY), shared=True), sequences()
    assert torch.equal(network(inputs, torch.randn(2, 12))[1], network(inputs)[1])
    assert_close(network.evaluate(inputs)[0], network(inputs)[1])


@pytest.mark.parametrize("observations", [(VECTOR,), (VECTOR, CAMERA)])
def test_acting_tensors_are_those_of_the_layout(observations):
    made = design(*observations, **MEMORY)
    shapes = [(name, tensor.shape) for name, tensor in make(made).acting_tensors().items()]
    assert shapes == list(policy_layout(made))


def test_loading_acting_weights_leaves_the_values_unchanged():
    network, other = make(design(VECTOR, CAMERA)), make(design(VECTOR, CAMERA), seed=1)
    inputs = picture()
    values = network(inputs)[1]
    write_named(network.acting_views, other.acting_tensors(), "policy")
    assert torch.equal(network(inputs)[0], other(inputs)[0])
    assert torch.equal(network(inputs)[1], values)


def test_a_network_that_took_up_the_state_of_another_equals_it():
    first, second = make(design(CAMERA, **MEMORY)), make(design(CAMERA, **MEMORY), seed=1)
    assert not torch.equal(first.values, second.values)
    second.load(first.state_dict())
    assert torch.equal(first.values, second.values)


def test_weights_of_another_size_are_refused_by_name_and_change_nothing():
    network, other = make(design(CAMERA)), make(design(CAMERA, hidden_units=16), seed=1)
    before = network.values.clone()
    with pytest.raises(StageError, match=r"weights: expected tensor actor.body.encoders.images.0.dense.weight "):
        network.load(other.state_dict())
    assert torch.equal(network.values, before)


def test_the_seed_determines_the_network_and_torchs_random_state_is_unchanged():
    state = torch.random.get_rng_state()
    first, second, third = (make(design(CAMERA), seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(first.values, second.values)
    assert not torch.equal(first.values, third.values)


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        (design(), ActorCritic),
        (design(squashed=True), ModularActorCritic),
        (design(CAMERA), ModularActorCritic),
        (design(**MEMORY), ModularActorCritic),
        (design(ObservationSpec("goal", (2,), goal=True)), ModularActorCritic),
    ],
)
def test_the_fast_network_is_taken_wherever_it_will_do(made, kind):
    assert type(make_actor_critic(made, 1, False, np.random.default_rng(0))) is kind

import numpy as np
import pytest
import torch
from tensors import assert_close

from headrace.config import NetworkSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.body import NetworkBody
from headrace.stages.policy.network.flat_parameters import seeded
from headrace.stages.policy.network.layers import Inputs

VECTOR = ObservationSpec("vector", (4,))
SECOND = ObservationSpec("second", (2,), "int64")
CAMERA = ObservationSpec("camera", (24, 20, 3), "uint8", channels_last=True)
SMALL = ObservationSpec("map", (2, 20, 21))
THINGS = ObservationSpec("things", (5, 3))
GOAL = ObservationSpec("goal", (3,), goal=True)
TARGET = ObservationSpec("target", (1, 20, 20), goal=True)
MEMORY = {"sequence_length": 4, "memory_size": 12}

KINDS = {
    "vectors": (VECTOR, SECOND),
    "image": (CAMERA,),
    "images and vectors": (CAMERA, VECTOR, SMALL),
    "set": (THINGS,),
    "sets, image and vector": (THINGS, VECTOR, CAMERA, ObservationSpec("others", (2, 6), "int32")),
    "goal": (VECTOR, GOAL),
    "image that is a goal": (THINGS, TARGET, VECTOR, GOAL),
}


def design(*observations, squashed=False, **settings):
    spec = BehaviorSpec("Test", observations, ActionSpec(2, (3,)))
    return PolicyDesign(spec, NetworkSettings(**{"hidden_units": 16, **settings}), squashed)


def body(made, extra=0, seed=0):
    return seeded(np.random.default_rng(seed), lambda: NetworkBody(made, extra))


def drawn(made, rows, length=1):
    """Inputs for a design: 12 rows of whatever it observes."""
    others = []
    for observation in made.spec.observations:
        if observation.kind == "vector":
            continue
        shape = (rows, *observation.shape)
        dtype = getattr(torch, observation.dtype)
        others.append(torch.randn(shape) if dtype.is_floating_point else torch.randint(0, 256, shape, dtype=dtype))
    vectors = torch.randn(rows, sum(o.size for o in made.spec.observations if o.kind == "vector"))
    if not made.memory_size:
        return Inputs(vectors, tuple(others))
    previous, memories = torch.randn(rows, made.previous_action_size), torch.randn(rows // length, made.memory_size)
    return Inputs(vectors, tuple(others), previous, memories, length)


@pytest.mark.parametrize(
    ("observations", "extra"), [(each, 2 * (turn % 2)) for turn, each in enumerate(KINDS.values())], ids=KINDS.keys()
)
@pytest.mark.parametrize("memory", [None, MEMORY], ids=["feed-forward", "memory"])
def test_gradients_reach_every_parameter(observations, memory, extra):
    made = design(*observations, memory=memory)
    network = body(made, extra)
    encoding, memories = network(drawn(made, 12, 4), torch.randn(12, extra) if extra else None)
    assert encoding.shape == (12, network.encoding_size)
    (encoding * torch.randn_like(encoding)).sum().backward()
    assert [name for name, p in network.named_parameters() if p.grad is None or not p.grad.any()] == []
    assert memories is None if memory is None else memories.shape == (3, 12)


@pytest.mark.parametrize("observations", KINDS.values(), ids=KINDS.keys())
def test_every_observation_matters(observations):
    made = design(*observations)
    network, inputs = body(made), drawn(made, 2)
    encoding = network(inputs)[0]
    for column in range(inputs.vectors.shape[1]):
        changed = inputs.vectors.clone()
        changed[:, column] += 1
        assert not torch.allclose(network(inputs._replace(vectors=changed))[0], encoding)
    for at, other in enumerate(inputs.others):
        changed = (*inputs.others[:at], torch.flip(other, [1]) // 2, *inputs.others[at + 1 :])
        assert not torch.allclose(network(inputs._replace(others=changed))[0], encoding)


@pytest.mark.parametrize("observations", KINDS.values(), ids=KINDS.keys())
def test_no_rows_give_no_rows(observations):
    made = design(*observations)
    assert body(made)(drawn(made, 0))[0].shape == (0, 16)


@pytest.mark.lengthy
def test_vectors_alone_go_through_hidden_layers_as_they_are():
    made = design(VECTOR, SECOND, num_layers=2, activation="tanh")
    network, inputs = body(made), drawn(made, 3)
    first, second = network.layers[0], network.layers[2]
    assert (first.in_features, second.in_features) == (6, 16)
    x = torch.tanh(inputs.vectors @ first.weight.T + first.bias)
    assert_close(network(inputs)[0], torch.tanh(x @ second.weight.T + second.bias))


def test_features_stand_in_the_order_vectors_images_sets():
    made = design(THINGS, CAMERA, VECTOR, SMALL, num_layers=1)
    network, inputs = body(made), drawn(made, 2)
    images = [network.encoders.images[0](inputs.others[1]), network.encoders.images[1](inputs.others[2])]
    own = torch.cat([inputs.vectors, *images], dim=1)
    features = torch.cat([own, *network.encoders.sets([inputs.others[0]], own)], dim=1)
    assert features.shape == (2, 4 + 16 + 16 + 128)
    assert_close(network(inputs)[0], network.layers(features))


def test_a_body_with_memory_gives_half_of_it_and_remembers():
    made = design(VECTOR, memory=MEMORY)
    network, inputs = body(made), drawn(made, 8, 4)
    assert network.encoding_size == 6
    assert network.memory_size == 12
    encoding = network(inputs)[0]
    other = network(inputs._replace(memories=inputs.memories + 1))[0]
    assert not torch.allclose(encoding[7], other[7])  # three steps later still


def test_a_sequence_at_once_equals_acting_step_by_step():
    made = design(CAMERA, VECTOR, memory=MEMORY)
    network, inputs = body(made), drawn(made, 8, 4)
    encoding, after = network(inputs)
    memories = inputs.memories
    for step in range(4):
        rows = torch.tensor([step, 4 + step])
        single = Inputs(inputs.vectors[rows], (inputs.others[0][rows],), inputs.previous_actions[rows], memories)
        acted, memories = network(single)
        assert_close(acted, encoding[rows])
    assert_close(memories, after)


def test_a_body_can_start_as_one_that_does_not_see_previous_actions():
    made = design(VECTOR, memory=MEMORY, hidden_units=512)
    network, inputs = body(made, extra=2), drawn(made, 4, 4)
    network.start_without_previous_actions()
    observed, previous, given = network.layers[0].weight.detach().split((4, 5, 2), dim=1)
    assert not previous.any()
    assert float(torch.cat((observed, given), dim=1).std()) == pytest.approx(1 / 6**0.5, rel=0.05)
    given, other = torch.randn(4, 2), inputs._replace(previous_actions=inputs.previous_actions + 1)
    assert_close(network(other, given)[0], network(inputs, given)[0])


def test_the_previous_action_matters_if_there_is_memory():
    made = design(VECTOR, memory=MEMORY)
    assert made.previous_action_size == 5
    network, inputs = body(made), drawn(made, 4, 4)
    encoding = network(inputs)[0]
    for column in range(5):
        changed = inputs.previous_actions.clone()
        changed[0, column] += 1
        assert not torch.allclose(network(inputs._replace(previous_actions=changed))[0], encoding)


def test_the_seed_determines_the_body():
    made = design(*KINDS["sets, image and vector"], memory=MEMORY)
    first, second, third = (torch.cat([p.flatten() for p in body(made, seed=s).parameters()]) for s in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_an_image_too_small_for_the_encoder_is_refused_before_anything_is_learned():
    with pytest.raises(StageError, match=r"Test: observation 'camera'.*24×20.*'nature_cnn'.*36.*simple, resnet"):
        body(design(CAMERA, vis_encode_type="nature_cnn"))

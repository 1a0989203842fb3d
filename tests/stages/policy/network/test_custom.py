"""A network of the user's own; the networks themselves are written into a folder, as a user has them."""

import textwrap
from itertools import count

import numpy as np
import pytest
import torch
from tensors import assert_close

from headrace.config import NetworkSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import LoadError, StageError
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.actor_critic import make_actor_critic
from headrace.stages.policy.network.body import ActorNetwork, NetworkBody
from headrace.stages.policy.network.flat_parameters import FlatParameters, seeded
from headrace.stages.policy.network.layers import Inputs

FIRST = ObservationSpec("first", (3,))
CAMERA = ObservationSpec("camera", (4, 5, 1), "uint8", channels_last=True)
SECOND = ObservationSpec("second", (), "int64")
THINGS = ObservationSpec("things", (2, 2), "uint8")
ALL = (FIRST, CAMERA, SECOND, THINGS)

FLAT = """
    import torch
    from torch import nn

    class FlatParameters(nn.Module):
        '''All observations side by side, and nothing else: shows what a network is given.'''

        def __init__(self, observations, settings):
            super().__init__()
            self.encoding_size = sum(observation.size for observation in observations)
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, observations):
            assert isinstance(observations, tuple)
            assert all(observation.dtype == torch.float32 for observation in observations)
            return self.scale * torch.cat([observation.flatten(1) for observation in observations], dim=1)
"""
LINEAR = """
    import torch
    from torch import nn

    class Linear(nn.Module):
        def __init__(self, observations, settings):
            super().__init__()
            self.encoding_size = settings.hidden_units
            self.layer = nn.Linear(observations[0].size, settings.hidden_units)

        def forward(self, observations):
            return torch.relu(self.layer(observations[0]))
"""

NUMBERS = count()


@pytest.fixture
def design(tmp_path):
    """Make a design whose network is a class in a module with this text."""

    def make(text, name, observations=(FIRST,), **settings):
        module = f"users_network_{next(NUMBERS)}"  # a module is imported once only
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(text))
        spec = BehaviorSpec("Test", observations, ActionSpec(2))
        network = NetworkSettings(**{"hidden_units": 8, "network": f"{module}:{name}", **settings})
        return PolicyDesign(spec, network, folder=tmp_path)

    return make


def body(made, extra=0):
    return seeded(np.random.default_rng(0), lambda: NetworkBody(made, extra))


def refused(made):
    with pytest.raises(StageError) as caught:
        body(made)
    said = str(caught.value)
    assert said.startswith(f"Test: network_settings.network '{made.settings.network}'")
    return said


def test_a_custom_network_gets_all_observations_as_floats_in_the_order_of_the_spec(design):
    made = body(design(FLAT, "FlatParameters", ALL))
    camera = torch.randint(0, 256, (2, 4, 5, 1), dtype=torch.uint8)
    things = torch.randint(0, 256, (2, 2, 2), dtype=torch.uint8)
    inputs = Inputs(torch.randn(2, 4), (camera, things))
    parts = [inputs.vectors[:, :3], camera.float().flatten(1) / 255, inputs.vectors[:, 3:], things.float().flatten(1)]
    encoding, memories = made(inputs)
    assert_close(encoding, torch.cat(parts, dim=1))
    assert memories is None
    assert made.encoding_size == 3 + 20 + 1 + 4


def test_a_custom_network_replaces_encoders_and_hidden_layers(design):
    made = body(design(FLAT, "FlatParameters"))
    assert [name for name, _ in made.named_parameters()] == ["encoders.network.scale"]


def test_actions_join_the_networks_encoding_in_one_hidden_layer(design):
    made = body(design(LINEAR, "Linear", num_layers=3), extra=2)
    inputs, actions = Inputs(torch.randn(4, 3)), torch.randn(4, 2)
    encoding = torch.relu(made.encoders.network.layer(inputs.vectors))
    joined = made.layers[0](torch.cat([encoding, actions], dim=1))
    assert_close(made(inputs, actions)[0], joined * torch.sigmoid(joined))
    assert len([layer for layer in made.layers if isinstance(layer, torch.nn.Linear)]) == 1


def test_a_memory_follows_the_network_and_also_receives_the_previous_action(design):
    made = body(design(LINEAR, "Linear", memory={"sequence_length": 2, "memory_size": 6}))
    inputs = Inputs(torch.randn(4, 3), (), torch.randn(4, 2), torch.randn(2, 6), 2)
    encoding, memories = made(inputs)
    assert (encoding.shape, memories.shape) == ((4, 3), (2, 6))
    other = inputs._replace(previous_actions=inputs.previous_actions + 1)
    assert not torch.allclose(made(other)[0], encoding)


def test_actor_and_critic_have_one_each_unless_they_share_it(design):
    made = design(LINEAR, "Linear")
    apart, shared = (make_actor_critic(made, 1, how, np.random.default_rng(0)) for how in (False, True))
    assert len([name for name in apart.parameters if name.endswith("layer.weight")]) == 2
    assert len([name for name in shared.parameters if name.endswith("layer.weight")]) == 1
    first, second = (p for name, p in apart.parameters.items() if name.endswith("layer.weight"))
    assert not torch.equal(first, second)


def test_a_custom_network_is_trained_and_sent_to_the_actors(design):
    made = design(LINEAR, "Linear")
    actor = FlatParameters(seeded(np.random.default_rng(0), lambda: ActorNetwork(made)))
    actor.module(Inputs(torch.randn(4, 3)))[0].sum().backward()
    assert actor.named_views(actor.gradients)["body.encoders.network.layer.weight"].any()
    assert "body.encoders.network.layer.weight" in actor.module.acting_tensors()


def test_layers_that_find_out_their_sizes_are_taken(design):
    made = body(design(LINEAR.replace("nn.Linear(observations[0].size, ", "nn.LazyLinear("), "Linear"))
    assert FlatParameters(made).values.numel() == 3 * 8 + 8


def test_the_same_seed_gives_the_same_custom_network(design):
    made = design(LINEAR, "Linear")
    assert torch.equal(body(made).encoders.network.layer.weight, body(made).encoders.network.layer.weight)


def test_a_missing_class_is_named_with_those_that_exist(design):
    with pytest.raises(LoadError, match=r"network .*:Liner'.*Linear"):
        body(design(LINEAR, "Liner"))


def test_a_custom_network_that_is_not_a_module_is_refused(design):
    assert "is the class Other; expected a subclass of torch.nn.Module" in refused(design("class Other: pass", "Other"))
    text = "def other(observations, settings): pass"
    assert "expected a subclass of torch.nn.Module" in refused(design(text, "other"))


def test_a_constructor_that_raises_is_reported_with_its_error(design):
    text = LINEAR.replace("observations[0].size", "observations[7].size")
    said = refused(design(text, "Linear"))
    assert "could not be created with (observations, settings): IndexError: tuple index out of range" in said


@pytest.mark.parametrize(
    ("line", "got"),
    [("pass", "got None"), ("self.encoding_size = 0", "got 0"), ("self.encoding_size = 8.0", "got 8.0")],
)
def test_a_missing_or_impossible_encoding_size_is_reported(design, line, got):
    said = refused(design(LINEAR.replace("self.encoding_size = settings.hidden_units", line), "Linear"))
    assert "must be a positive integer, got" in said
    assert got in said


def test_an_output_of_another_shape_than_promised_is_reported(design):
    text = LINEAR.replace("self.encoding_size = settings.hidden_units", "self.encoding_size = 5")
    said = refused(design(text, "Linear"))
    assert "forward returned shape (3, 8) for 3 rows; expected a tensor of shape (3, 5), [rows, encoding_size]" in said
    said = refused(design(LINEAR.replace("return torch.relu(", "return (").replace("[0]))", "[0]),)"), "Linear"))
    assert "forward returned tuple for 3 rows" in said


def test_a_forward_pass_that_raises_is_reported_with_the_shapes_that_it_got(design):
    said = refused(design(LINEAR.replace("self.layer(observations[0])", "self.layer(observations[1])"), "Linear", ALL))
    assert "failed on observations of shapes [(3, 3), (3, 4, 5, 1), (3, 1), (3, 2, 2)]: RuntimeError" in said


def test_layers_with_running_statistics_are_refused_because_actors_would_not_get_them(design):
    text = LINEAR.replace("self.layer =", "self.norm = nn.BatchNorm1d(3); self.layer =")
    assert "its layer 'norm' (BatchNorm1d) keeps running statistics" in refused(design(text, "Linear"))


def test_parameters_of_another_precision_are_refused(design):
    text = LINEAR.replace("settings.hidden_units)", "settings.hidden_units).double()")
    assert "its parameter 'layer.weight' is torch.float64; expected torch.float32" in refused(design(text, "Linear"))

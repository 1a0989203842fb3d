import numpy as np
import pytest
import torch
from tensors import assert_close
from torch.nn import functional as F

from headrace.config import NetworkSettings
from headrace.config.network_settings import IMAGE_ENCODERS
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.images import VisualEncoder, pixels

HEIGHT, WIDTH, CHANNELS, OUTPUTS = 36, 40, 3, 16

CONVOLUTIONS = {
    "simple": [(16, 3, 8, 8), (32, 16, 4, 4)],
    "nature_cnn": [(32, 3, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3)],
    "resnet": [
        *[(16, 3, 3, 3), *[(16, 16, 3, 3)] * 4],
        *[(32, 16, 3, 3), *[(32, 32, 3, 3)] * 4],
        *[(32, 32, 3, 3), *[(32, 32, 3, 3)] * 4],
    ],
    "match3": [(35, 3, 3, 3), (144, 35, 3, 3)],
    "fully_connected": [],
}
DENSE_INPUTS = {
    "simple": 32 * 3 * 3,  # 36 -> 8 -> 3 and 40 -> 9 -> 3
    "nature_cnn": 64 * 1 * 1,  # 36 -> 8 -> 3 -> 1 and 40 -> 9 -> 3 -> 1
    "resnet": 32 * 3 * 4,  # 36 -> 17 -> 8 -> 3 and 40 -> 19 -> 9 -> 4
    "match3": 144 * 32 * 36,
    "fully_connected": 3 * 36 * 40,
}
KINDS = list(CONVOLUTIONS)


def image(channels=CHANNELS, height=HEIGHT, width=WIDTH, dtype="float32", last=False):
    return ObservationSpec("camera", (height, width, channels) if last else (channels, height, width), dtype, last)


def encoder(kind, observation=None, outputs=OUTPUTS):
    torch.manual_seed(0)
    observation = observation or image()
    settings = NetworkSettings(vis_encode_type=kind, hidden_units=outputs)
    return VisualEncoder(observation, PolicyDesign(BehaviorSpec("Test", (observation,), ActionSpec(1)), settings))


def by_hand(kind, x, weights):
    """The encoder again, as a list of operations on its weights in their order."""
    weights = iter(weights)

    def conv(x, stride=1, padding=0):
        return F.conv2d(x, next(weights), next(weights), stride, padding)

    leaky = lambda x: torch.where(x > 0, x, 0.01 * x)  # noqa: E731
    swish = lambda x: x * torch.sigmoid(x)  # noqa: E731
    strides = {"simple": (4, 2), "nature_cnn": (4, 2, 1), "match3": (1, 1)}
    for stride in strides.get(kind, ()):
        x = leaky(conv(x, stride))
    if kind == "resnet":
        for _ in range(3):
            x = F.max_pool2d(conv(x, padding=1), 3, 2)
            for _ in range(2):
                inner = conv(swish(x), padding=1)
                x = x + conv(swish(inner), padding=1)
        x = swish(x)
    x = x.reshape(len(x), -1) @ next(weights).T + next(weights)
    return torch.relu(x) if kind == "resnet" else leaky(x)


@pytest.mark.parametrize("kind", KINDS)
def test_layers_have_the_sizes_that_ml_agents_gives_them(kind):
    weights = [tuple(p.shape) for p in encoder(kind).parameters() if p.dim() > 1]
    assert weights == [*CONVOLUTIONS[kind], (OUTPUTS, DENSE_INPUTS[kind])]


@pytest.mark.parametrize("kind", KINDS)
def test_the_forward_pass_is_that_of_the_operations_written_out(kind):
    made = encoder(kind)
    x = torch.rand(2, CHANNELS, HEIGHT, WIDTH)
    assert_close(made(x), by_hand(kind, x, made.parameters()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [1, 5])
def test_any_number_of_channels_will_do(kind, channels):
    assert encoder(kind, image(channels))(torch.rand(2, channels, HEIGHT, WIDTH)).shape == (2, OUTPUTS)


@pytest.mark.parametrize("kind", KINDS)
def test_channels_last_gives_the_same_as_channels_first(kind):
    x = torch.rand(2, CHANNELS, HEIGHT, WIDTH)
    first, last = encoder(kind), encoder(kind, image(last=True))
    assert_close(last(x.permute(0, 2, 3, 1).contiguous()), first(x))


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_mean_the_same_as_floats_from_0_to_1(kind):
    made = encoder(kind)
    x = torch.randint(0, 256, (2, CHANNELS, HEIGHT, WIDTH), dtype=torch.uint8)
    assert_close(made(x), made(x.float() / 255))


def test_only_bytes_are_scaled_and_the_picture_is_only_read():
    picture = torch.tensor([0, 51, 255], dtype=torch.uint8)
    assert pixels(picture).tolist() == pytest.approx([0.0, 0.2, 1.0])
    assert picture.tolist() == [0, 51, 255]
    assert pixels(torch.tensor([0, 51, 255])).tolist() == [0.0, 51.0, 255.0]
    assert pixels(torch.tensor([-1.5, 300.0])).tolist() == [-1.5, 300.0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_smallest_picture_that_an_encoder_takes_is_taken(kind):
    side = IMAGE_ENCODERS[kind].smallest_side
    made = encoder(kind, image(1, side, side))
    assert made(torch.rand(2, 1, side, side)).shape == (2, OUTPUTS)


@pytest.mark.parametrize(("kind", "side"), [("simple", 20), ("nature_cnn", 36), ("resnet", 15), ("match3", 5)])
def test_a_smaller_picture_is_refused_with_what_would_fit(kind, side):
    with pytest.raises(StageError) as caught:
        encoder(kind, image(3, 64, side - 1, last=True))
    said = str(caught.value)
    assert f"Test: observation 'camera' is an image of 64×{side - 1} pixels" in said
    assert f"vis_encode_type '{kind}', which needs {side} on both sides" in said
    fitting = said.rpartition("encoders that fit: ")[2].split(", ")
    assert fitting == [name for name, entry in IMAGE_ENCODERS.items() if entry.smallest_side < side]


def test_the_dense_layer_starts_with_the_spread_that_ml_agents_gives_it():
    dense = encoder("fully_connected", outputs=64).dense
    assert dense.weight.std().item() == pytest.approx(1.41 / np.sqrt(DENSE_INPUTS["fully_connected"]), rel=0.03)
    assert not dense.bias.any()


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_encoder_has_a_second_derivative(kind):
    # Gradient penalties (GAIL's) need one.
    made = encoder(kind)
    x = torch.rand(2, CHANNELS, HEIGHT, WIDTH, requires_grad=True)
    (slope,) = torch.autograd.grad(made(x).square().sum(), x, create_graph=True)
    slope.square().sum().backward()
    assert all(weight.grad.any() for weight in made.parameters() if weight.dim() > 1)

"""Encoders of images: convolutions, then one linear layer to `hidden_units` numbers.

Layers, activations and initial weights are those of ML-Agents' encoders of the same names. What numbers pixels become
is decided here alone, in `pixels`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from queues.specs import ObservationSpec
from stages.errors import StageError
from stages.policy.network.layers import linear

MINIMUM_SIDES = {"simple": 20, "nature_cnn": 36, "resnet": 15, "match3": 5, "fully_connected": 1}
"""Pixels that height and width need for each encoder's last layer to have anything left to see."""

_DENSE_GAIN = 1.41
_LEAK = 0.01
_RESNET_CHANNELS = (16, 32, 32)
_RESNET_BLOCKS = 2


def pixels(image: Tensor) -> Tensor:
    """Pixels as float32: bytes become 0 to 1, all other numbers stay what they are."""
    return image.float().div_(255.0) if image.dtype == torch.uint8 else image.float()


class VisualEncoder(nn.Module):
    """One image to one vector.

    Args:
        observation: an image, [channels, height, width] or, `channels_last`, [height, width, channels].
        kind: a key of `MINIMUM_SIDES`.
        outputs: width of the vector.
        behavior: whose it is, for messages.
        key: where its settings stand in the behaviour's block, for messages.

    Raises:
        StageError: if the image is too small for the encoder; the message says which encoders fit.
    """

    def __init__(self, observation: ObservationSpec, kind: str, outputs: int, behavior: str, key: str) -> None:
        super().__init__()
        channels, height, width = _size(observation)
        _check(observation, kind, height, width, behavior, key)
        self.features = _FEATURES[kind](channels)
        with torch.no_grad():
            seen = self.features(torch.zeros(1, channels, height, width)).numel()
        self.dense = linear(seen, outputs, _DENSE_GAIN)
        self.activation: nn.Module = nn.ReLU() if kind == "resnet" else nn.LeakyReLU(_LEAK)
        self._channels_last = observation.channels_last

    def forward(self, image: Tensor) -> Tensor:
        """Encode images [B, *shape] of any dtype as [B, outputs]."""
        x = pixels(image)
        if self._channels_last:
            x = x.permute(0, 3, 1, 2)
        if x.is_cpu:  # a tenth to a third faster there than with the channels apart, both passes together
            x = x.contiguous(memory_format=torch.channels_last)
        encoding: Tensor = self.activation(self.dense(self.features(x).flatten(1)))
        return encoding


class Residual(nn.Module):
    """What goes in, plus two convolutions of it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.SiLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map x [B, channels, height, width] to the same shape."""
        return x + self.layers(x)  # type: ignore[no-any-return]  # nn.Module.__call__ is untyped


def _convolutions(channels: int, *layers: tuple[int, int, int]) -> nn.Sequential:
    """Convolutions without padding, each (channels out, kernel, stride) and a leaky ReLU."""
    modules: list[nn.Module] = []
    for outputs, kernel, stride in layers:
        modules += [nn.Conv2d(channels, outputs, kernel, stride), nn.LeakyReLU(_LEAK)]
        channels = outputs
    return nn.Sequential(*modules)


def _resnet(channels: int) -> nn.Sequential:
    """The residual network of Espeholt et al. (2018), "IMPALA", figure 3, with swish and without padded pools."""
    modules: list[nn.Module] = []
    for inputs, outputs in pairwise((channels, *_RESNET_CHANNELS)):
        modules += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.MaxPool2d(3, 2)]
        modules += [Residual(outputs) for _ in range(_RESNET_BLOCKS)]
    return nn.Sequential(*modules, nn.SiLU())


_FEATURES: dict[str, Callable[[int], nn.Sequential]] = {
    "simple": lambda channels: _convolutions(channels, (16, 8, 4), (32, 4, 2)),
    # Mnih et al. (2015), "Human-level control through deep reinforcement learning".
    "nature_cnn": lambda channels: _convolutions(channels, (32, 8, 4), (64, 4, 2), (64, 3, 1)),
    "resnet": _resnet,
    # Gudmundsson et al. (2018), "Human-Like Playtesting with Deep Learning".
    "match3": lambda channels: _convolutions(channels, (35, 3, 1), (144, 3, 1)),
    "fully_connected": lambda _: nn.Sequential(),
}


def _size(observation: ObservationSpec) -> tuple[int, int, int]:
    """Channels, height and width."""
    a, b, c = observation.shape
    return (c, a, b) if observation.channels_last else (a, b, c)


def _check(observation: ObservationSpec, kind: str, height: int, width: int, behavior: str, key: str) -> None:
    if kind not in MINIMUM_SIDES:
        raise StageError(f"{behavior}: {key}.vis_encode_type: {kind!r} is not one of {', '.join(MINIMUM_SIDES)}")
    if min(height, width) < MINIMUM_SIDES[kind]:
        fitting = [name for name, side in MINIMUM_SIDES.items() if min(height, width) >= side]
        raise StageError(
            f"{behavior}: observation {observation.name!r} is an image of {height}×{width} pixels (height×width), too "
            f"small for {key}.vis_encode_type {kind!r}, which needs {MINIMUM_SIDES[kind]} on both sides; "
            f"encoders that fit: {', '.join(fitting) or 'none'}"
        )

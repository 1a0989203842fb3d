"""Image encoders: convolutions, then one linear layer with the width of the first hidden layer.

Layers, activations and initial weights are those of ML-Agents' encoders of the same names; the table of encoders is in
`headrace.config.network_settings`. Only `pixels` scales pixel values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.config.network_settings import IMAGE_ENCODERS
from headrace.queues.specs import ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.loading import load_attribute
from headrace.stages.policy.design import TORCHS_OWN, PolicyDesign
from headrace.stages.policy.network.layers import hidden_linear
from headrace.stages.policy.network.products import encoding_in

_DENSE_GAIN = 1.41
_RESNET_CHANNELS = (16, 32, 32)
_RESNET_BLOCKS = 2


def pixels(image: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Convert pixels to a float dtype; bytes are scaled to the range 0 to 1, and other numbers do not change."""
    return image.to(dtype).div_(255.0) if image.dtype == torch.uint8 else image.to(dtype)


class VisualEncoder(nn.Module):
    """Encodes one image as one vector, as wide as the first hidden layer.

    Args:
        observation: an image, [channels, height, width] or, `channels_last`, [height, width, channels].
        design: the policy's design.

    Raises:
        StageError: if the image is too small for the encoder; the message says which encoders fit.
    """

    def __init__(self, observation: ObservationSpec, design: PolicyDesign) -> None:
        super().__init__()
        kind, products, shape = design.settings.vis_encode_type, design.products, observation.shape
        channels, height, width = shape[-1:] + shape[:-1] if observation.channels_last else shape
        self.entry, side = IMAGE_ENCODERS[kind], min(height, width)
        if side < self.entry.smallest_side:
            fitting = [name for name, encoder in IMAGE_ENCODERS.items() if side >= encoder.smallest_side]
            raise StageError(
                f"{design.spec.behavior_id}: observation {observation.name!r} is an image of {height}×{width} pixels "
                f"(height×width), too small for {design.key}.vis_encode_type {kind!r}, which needs "
                f"{self.entry.smallest_side} on both sides; encoders that fit: {', '.join(fitting) or 'none'}"
            )
        self.features = load_attribute(self.entry.layers, None, "image encoder")(channels)
        with torch.no_grad():
            seen = self.features(torch.zeros(1, channels, height, width)).numel()
        # Inside autocast, torch's own layer does the rounding.
        exact = TORCHS_OWN if products.images_rounded else replace(products, rounded_from=0)
        self.dense = hidden_linear(seen, design.settings.widths[0], exact, _DENSE_GAIN)
        self.activation: nn.Module = load_attribute(self.entry.activation, None, "activation")()
        self._channels_last = observation.channels_last
        self._bf16 = products.images_rounded

    def forward(self, image: Tensor) -> Tensor:
        """Encode images [B, *shape] of any dtype as [B, outputs]."""
        x = image.permute(0, 3, 1, 2) if self._channels_last else image
        if x.is_cpu:  # channels last makes forward plus backward on a CPU 10–33 % faster
            x = x.contiguous(memory_format=torch.channels_last)
        dtype = self.dense.weight.dtype
        with encoding_in(self._bf16, x.device):
            encoding: Tensor = self.activation(self.dense(self._features(x).flatten(1)))
        return encoding.to(dtype)

    def _features(self, x: Tensor) -> Tensor:
        """Run the convolutions on pixels of any dtype."""
        first = next(iter(self.features.children()), None)
        dtype = torch.bfloat16 if self._bf16 else self.dense.weight.dtype
        if x.dtype != torch.uint8 or not isinstance(first, nn.Conv2d) or not isinstance(self.features, nn.Sequential):
            return self.features(pixels(x, dtype))  # type: ignore[no-any-return]  # nn.Module.__call__ is untyped
        # Bytes are exact at either precision. Scaling the weights instead of millions of pixels saves a pass over the
        # image.
        outputs = functional.conv2d(x.to(dtype), first.weight / 255.0, first.bias, first.stride, first.padding)
        return self.features[1:](outputs)  # type: ignore[no-any-return]


class ImageEncoders(nn.ModuleList):
    """Encodes each of a behaviour's images as a vector [H], where H is the first hidden layer's width.

    See `body.KindEncoder`.

    Raises:
        StageError: if an image is too small for the encoder.
    """

    def __init__(self, observations: Sequence[ObservationSpec], design: PolicyDesign, context: int) -> None:
        super().__init__(VisualEncoder(one, design) for one in observations)
        width = design.settings.widths[0]
        self.size = len(observations) * width
        self.goals = [(at, width) for at, one in enumerate(observations) if one.goal and design.hypernetwork]

    def forward(self, observations: Sequence[Tensor], context: Tensor | None) -> list[Tensor]:
        """Encode images [B, *shape] of any dtype, each as [B, H]."""
        return [encoder(image) for encoder, image in zip(self, observations, strict=True)]


class Residual(nn.Module):
    """A residual block, which adds the output of two convolutions to its input."""

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


def simple(channels: int) -> nn.Module:
    """Make two convolutions."""
    return _convolutions(channels, (16, 8, 4), (32, 4, 2))


def nature_cnn(channels: int) -> nn.Module:
    """Make three convolutions: Mnih et al. (2015), "Human-level control through deep reinforcement learning"."""
    return _convolutions(channels, (32, 8, 4), (64, 4, 2), (64, 3, 1))


def match3(channels: int) -> nn.Module:
    """Make two convolutions for small boards.

    Gudmundsson et al. (2018), "Human-Like Playtesting with Deep Learning".
    """
    return _convolutions(channels, (35, 3, 1), (144, 3, 1))


def fully_connected(channels: int) -> nn.Module:
    """Make an encoder without convolutions, in which pixels go straight to the linear layer."""
    return nn.Sequential()


def resnet(channels: int) -> nn.Module:
    """Make the residual network of Espeholt et al. (2018), "IMPALA", figure 3, with swish and unpadded pooling."""
    modules: list[nn.Module] = []
    for inputs, outputs in pairwise((channels, *_RESNET_CHANNELS)):
        modules += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.MaxPool2d(3, 2)]
        modules += [Residual(outputs) for _ in range(_RESNET_BLOCKS)]
    return nn.Sequential(*modules, nn.SiLU())


def _convolutions(channels: int, *layers: tuple[int, int, int]) -> nn.Sequential:
    """Make convolutions without padding, each (channels out, kernel, stride) and followed by a leaky ReLU."""
    modules: list[nn.Module] = []
    for outputs, kernel, stride in layers:
        modules += [nn.Conv2d(channels, outputs, kernel, stride), nn.LeakyReLU()]
        channels = outputs
    return nn.Sequential(*modules)

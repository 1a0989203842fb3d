"""The table of image encoders: each `vis_encode_type` of `network_settings`, and where its layers are.

A new encoder is one entry here, and the function that the entry names. A whole network of one's own needs none: see
`network_settings.network`.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config.tables import Table


@dataclass(frozen=True, slots=True)
class ImageEncoder:
    """One encoder: layers over an image; a linear layer as wide as the first hidden one and an activation follow.

    Functions are given as `module:name`, and imported where they are called.
    """

    layers: str
    """Function from the number of channels to a torch module that takes images [B, channels, height, width]."""
    smallest_side: int
    """Pixels that height and width need for the last layer to have anything left to see."""
    activation: str = "torch.nn:LeakyReLU"
    """Module class of the activation after the linear layer."""
    onnx: str = "headrace.stages.policy.onnx.layers:apply"
    """Function that writes the layers to ONNX: from `(graph, module, value)` to a value. This one knows the layers of
    the built-in encoders."""


IMAGE_ENCODERS: Table[ImageEncoder] = Table(
    simple=ImageEncoder("headrace.stages.policy.network.images:simple", 20),
    nature_cnn=ImageEncoder("headrace.stages.policy.network.images:nature_cnn", 36),
    resnet=ImageEncoder("headrace.stages.policy.network.images:resnet", 15, activation="torch.nn:ReLU"),
    match3=ImageEncoder("headrace.stages.policy.network.images:match3", 5),
    fully_connected=ImageEncoder("headrace.stages.policy.network.images:fully_connected", 1),
)
"""By `vis_encode_type`."""

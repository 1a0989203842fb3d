"""A custom network in place of the built-in encoders and hidden layers.

`config.yaml` next to this file refers to it as `my_network:ResidualNetwork`. See docs/extending.md, "A network".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headrace import NetworkSettings, ObservationSpec


class ResidualNetwork(nn.Module):
    """A residual perceptron with layer norms over all observations, flattened and concatenated.

    Args:
        observations: the agent's observations, with names, shapes and dtypes.
        settings: the behaviour's `network_settings`; here `num_layers` is the number of residual blocks.
    """

    def __init__(self, observations: tuple[ObservationSpec, ...], settings: NetworkSettings) -> None:
        super().__init__()
        width = settings.widths[0]
        self.encoding_size = width
        """Width of the encoding."""
        self.first = nn.Linear(sum(observation.size for observation in observations), width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
            for _ in range(settings.num_layers)
        )

    def forward(self, observations: tuple[Tensor, ...]) -> Tensor:
        """Encode B rows, given one float tensor [B, *shape] per observation; return [B, encoding_size]."""
        x = self.first(torch.cat([observation.flatten(1) for observation in observations], dim=1))
        for block in self.blocks:
            x = x + block(x)
        return nn.functional.silu(x)

"""What entries of tables name in `test_seams`: an encoder of images, and a kind of observation with its encoder."""

from __future__ import annotations

import torch
from torch import nn


def thin(channels):
    """Layers of an image encoder, one of which no built-in encoder has."""
    return nn.Sequential(nn.Conv2d(channels, 2, 3, 2), nn.Softplus())


class ClipEncoder(nn.Module):
    """Clips of pictures [frames, channels, height, width], each to 4 numbers by way of its mean over frames."""

    goals = ()

    def __init__(self, observations, design, beside):
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(one.size // one.shape[0], 4) for one in observations)
        self.size = 4 * len(observations)

    def forward(self, observations, beside):
        return [
            torch.tanh(linear(clip.float().mean(dim=1).flatten(1)))
            for linear, clip in zip(self.linears, observations, strict=True)
        ]

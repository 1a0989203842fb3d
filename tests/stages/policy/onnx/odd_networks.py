"""Networks of a user's own, for tests of what can be written to ONNX."""

import torch
from torch import nn


class Odd(nn.Module):
    """Calls what no operator set has."""

    def __init__(self, observations, settings):
        super().__init__()
        self.encoding_size = 8
        self.linear = nn.Linear(3, 8)

    def forward(self, observations):
        return torch.sinc(self.linear(observations[0]))


class Later(nn.Module):
    """Calls what operator sets have from 11 on."""

    def __init__(self, observations, settings):
        super().__init__()
        self.encoding_size = 8
        self.linear = nn.Linear(3, 8)

    def forward(self, observations):
        return torch.round(self.linear(observations[0]))


class Mixed(nn.Module):
    """Takes every kind of observation, each in its own shape."""

    def __init__(self, observations, settings):
        super().__init__()
        self.shapes = [observation.shape for observation in observations]
        self.encoding_size = 12
        self.linear = nn.Linear(sum(observation.size for observation in observations), 12)

    def forward(self, observations):
        assert [tuple(each.shape[1:]) for each in observations] == [shape or (1,) for shape in self.shapes]
        return torch.tanh(self.linear(torch.cat([each.flatten(1) for each in observations], dim=1)))

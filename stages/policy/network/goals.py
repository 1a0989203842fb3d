"""Goal conditioning: a hypernetwork makes the last hidden layer's weights from the goals."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn

from headrace.stages.policy.network.layers import layer_norm, linear


class HyperLayer(nn.Module):
    """A linear layer whose matrix depends on the goal; Ha et al. (2017), "HyperNetworks".

    Two hidden layers with swish, a layer norm and one linear layer make the matrix; the bias is a parameter as in any
    other layer. Initial weights are ML-Agents'.

    Args:
        inputs: width of its input.
        outputs: width of its output, and of the hypernetwork's layers.
        goals: width of the goal.
    """

    def __init__(self, inputs: int, outputs: int, goals: int) -> None:
        super().__init__()
        self.hidden = nn.Sequential(linear(goals, outputs), nn.SiLU(), linear(outputs, outputs), nn.SiLU())
        self.matrix = nn.Linear(outputs, inputs * outputs)
        # So small that the matrix made from normalised activations is spread like that of an ordinary layer.
        bound = sqrt(1.0 / (outputs * inputs))
        nn.init.uniform_(self.matrix.weight, -bound, bound)
        nn.init.zeros_(self.matrix.bias)
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.shape = (inputs, outputs)

    def forward(self, x: Tensor, goals: Tensor) -> Tensor:
        """Map x [B, inputs] to [B, outputs] by the goals [B, goals] of the same rows."""
        matrices = self.matrix(layer_norm(self.hidden(goals))).view(len(x), *self.shape)
        return torch.bmm(x.unsqueeze(1), matrices).squeeze(1) + self.bias

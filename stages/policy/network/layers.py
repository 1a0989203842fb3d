"""Layers that several parts of a network are made of, with ML-Agents' initial weights."""

from __future__ import annotations

from math import sqrt

import numpy as np
import torch
from torch import Tensor, nn

from headrace.stages.policy.network.products import WIDE, HiddenLinear

ACTIVATIONS: dict[str, type[nn.Module]] = {"swish": nn.SiLU, "tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}


def linear(inputs: int, outputs: int, gain: float = 1.0) -> nn.Linear:
    """A layer with ML-Agents' initial weights: normal with std gain / sqrt(fan_in), biases 0."""
    return _normal(nn.Linear(inputs, outputs), gain / sqrt(max(1, inputs)))


def hidden_linear(inputs: int, outputs: int, bf16: bool) -> nn.Linear:
    """A hidden layer with the weights of `linear`; with `bf16` a wide one multiplies in bfloat16."""
    if not bf16 or min(inputs, outputs) < WIDE:
        return linear(inputs, outputs)
    return _normal(HiddenLinear(inputs, outputs), 1.0 / sqrt(inputs))


def attention_linear(inputs: int, outputs: int) -> nn.Linear:
    """A layer of an attention block: normal with std sqrt(0.125 / outputs) for inputs of any width, biases 0.

    Small enough for a transformer to learn without warm-up: Huang et al. (2020), "Improving Transformer Optimization
    Through Better Initialization".
    """
    return _normal(nn.Linear(inputs, outputs), sqrt(0.125 / outputs))


def write_tanh(z: Tensor, out: Tensor) -> None:
    """Write the hyperbolic tangent of z, without a graph; `out` may be z.

    On a CPU it is NumPy's, which is fast on all of them: torch's takes seven times as long on AMD's.
    """
    if z.is_cpu:
        np.tanh(z.numpy(), out=out.numpy())
    else:
        torch.tanh(z, out=out)


def layer_norm(x: Tensor) -> Tensor:
    """Zero mean and unit variance over the last axis, without learned parameters."""
    return nn.functional.layer_norm(x, x.shape[-1:])


def _normal(layer: nn.Linear, std: float) -> nn.Linear:
    nn.init.normal_(layer.weight, std=std)
    nn.init.zeros_(layer.bias)
    return layer

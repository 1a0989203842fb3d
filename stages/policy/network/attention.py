"""Attention among a varying number of things, for encoders of sets and critics of groups."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn

from headrace.stages.policy.network.layers import layer_norm

HEADS = 4
LEAST_OF_BLAS = 400
"""Multiplications in a product of matrices from which on torch gives a batch of such products to BLAS; below, it goes
through them element by element, for which `_attend_few` takes half the time."""
_NEVER = torch.finfo(torch.float32).min
"""A score whose weight is exactly 0 beside any other. Unlike -inf it gives no NaN where all things are missing."""


def residual_attention(
    x: Tensor, there: Tensor, query: nn.Linear, key: nn.Linear, value: nn.Linear, out: nn.Linear
) -> Tensor:
    """A residual self-attention block after Vaswani et al. (2017), and the mean over the things that are there.

    Args:
        x: [B, n, W] embedded things; W is a multiple of `HEADS`. Missing ones may be any finite numbers.
        there: [B, n] true where a thing is present.
        query: W to W, as are the others.
        key: see above.
        value: see above.
        out: after the heads, before the sum.

    Returns:
        [B, W], zeros where nothing is there.
    """
    batch, n, width = x.shape
    there = there.t()
    # From here on the batch is an inner axis: `_attend_few` wants it side by side in memory.
    x = layer_norm(x.transpose(0, 1)).reshape(n * batch, width)
    attend = _attend_few if x.is_cpu and n * n * (width // HEADS) < LEAST_OF_BLAS else _attend
    x = layer_norm(x + out(attend(x, there, query, key, value))).view(n, batch, width)
    count = there.sum(dim=0).clamp(min=1)
    return (x * there.unsqueeze(2)).sum(dim=0) / count.unsqueeze(1)


def _attend(x: Tensor, there: Tensor, query: nn.Linear, key: nn.Linear, value: nn.Linear) -> Tensor:
    """Gather for each of n things [n·B, W] the values of those that are present [n, B].

    Written out instead of torch's fused attention, which has no second derivative (gradient penalties need it).
    """
    (n, batch), width = there.shape, x.shape[1]
    q, k, v = (layer(x).view(n, batch, HEADS, width // HEADS).permute(1, 2, 0, 3) for layer in (query, key, value))
    scores = q @ k.transpose(2, 3) / sqrt(width)  # ML-Agents' scale: of all heads together
    weights = scores.masked_fill(~there.t()[:, None, None, :], _NEVER).softmax(dim=3)
    gathered: Tensor = (weights @ v).permute(2, 0, 1, 3).reshape(n * batch, width)
    return gathered


def _attend_few(x: Tensor, there: Tensor, query: nn.Linear, key: nn.Linear, value: nn.Linear) -> Tensor:
    """Do what `_attend` does, for few things: number by number, with the batch as the innermost axis of all arrays."""
    (n, batch), width = there.shape, x.shape[1]
    weight = torch.cat([query.weight, key.weight, value.weight])
    bias = torch.cat([query.bias, key.bias, value.bias])
    q, k, v = torch.addmm(bias[:, None], weight, x.t()).view(3, HEADS, width // HEADS, n, batch).unbind()
    scores = (q[:, :, :, None] * k[:, :, None]).sum(dim=1) / sqrt(width)
    weights = scores.masked_fill(~there, _NEVER).softmax(dim=2)
    gathered = (weights[:, None] * v[:, :, None]).sum(dim=3)
    return gathered.view(width, n * batch).t()

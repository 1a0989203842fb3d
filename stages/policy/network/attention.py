"""Attention among a varying number of things, for encoders of sets and critics of groups."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn

from stages.policy.network.layers import layer_norm

HEADS = 4
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
    x = layer_norm(x)
    x = layer_norm(x + out(_attend(query(x), key(x), value(x), there)))
    count = there.sum(dim=1, keepdim=True).clamp(min=1)
    return (x * there.unsqueeze(2)).sum(dim=1) / count


def _attend(query: Tensor, key: Tensor, value: Tensor, there: Tensor) -> Tensor:
    """Gather for each of n things [B, n, W] the values of those that are present [B, n].

    Written out instead of torch's fused attention, which has no second derivative (gradient penalties need it).
    """
    batch, n, width = query.shape
    query, key, value = (x.view(batch, n, HEADS, width // HEADS).transpose(1, 2) for x in (query, key, value))
    scores = query @ key.transpose(2, 3) / sqrt(width)  # ML-Agents' scale: of all heads together
    weights = scores.masked_fill(~there[:, None, None, :], _NEVER).softmax(dim=3)
    gathered: Tensor = (weights @ value).transpose(1, 2).reshape(batch, n, width)
    return gathered

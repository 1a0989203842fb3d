"""Observations of a varying number of things (ML-Agents' buffer sensors): attention among them, then their mean.

Each thing is embedded together with what the agent knows of itself, looks at all others, and the mean over the things
that are there is the encoding. Rows of zeros are padding and never influence anything, nor does the order of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import torch
from torch import Tensor, nn

from stages.policy.network.layers import attention_linear, layer_norm

EMBEDDING = 128
"""Width of the encoding, whatever the settings, as in ML-Agents."""
_HEADS = 4
_NEVER = torch.finfo(torch.float32).min
"""A score whose weight is exactly 0 beside any other. Unlike -inf it gives no NaN where there is nothing at all."""


class SetEncoder(nn.Module):
    """All sets of a behaviour to one vector: a residual self-attention block after Vaswani et al. (2017).

    Args:
        widths: numbers per thing of each set.
        own: width of what the agent knows of itself, 0 for nothing.
    """

    def __init__(self, widths: Sequence[int], own: int) -> None:
        super().__init__()
        self.own = attention_linear(own, EMBEDDING) if own else None
        beside = EMBEDDING if own else 0
        self.embeddings = nn.ModuleList(_Embedding(width, beside) for width in widths)
        self.query = attention_linear(EMBEDDING, EMBEDDING)
        self.key = attention_linear(EMBEDDING, EMBEDDING)
        self.value = attention_linear(EMBEDDING, EMBEDDING)
        self.out = attention_linear(EMBEDDING, EMBEDDING)

    def forward(self, sets: Sequence[Tensor], own: Tensor | None) -> Tensor:
        """Encode B rows.

        Args:
            sets: [B, n, width] of each set, of any dtype; only read.
            own: [B, own] what the agent knows of itself, None for nothing.

        Returns:
            [B, EMBEDDING], zeros where all sets are empty.
        """
        things = [things.float() for things in sets]
        there = torch.cat([(each != 0).any(dim=2) for each in things], dim=1)
        x = layer_norm(self._embed(things, own))
        x = layer_norm(x + self.out(self._attend(x, there)))
        count = there.sum(dim=1, keepdim=True).clamp(min=1)
        return (x * there.unsqueeze(2)).sum(dim=1) / count

    def _embed(self, sets: Sequence[Tensor], own: Tensor | None) -> Tensor:
        """Every thing of every set, beside what the agent knows of itself: [B, N, EMBEDDING]."""
        known = nn.functional.silu(self.own(own)) if self.own is not None else None
        embedded = [embed(each, known) for embed, each in zip(self.embeddings, sets, strict=True)]
        return torch.cat(embedded, dim=1)

    def _attend(self, x: Tensor, there: Tensor) -> Tensor:
        """What each of N things [B, N, EMBEDDING] gathers from those that are there [B, N].

        Written out instead of torch's fused attention, which has no second derivative (gradient penalties need it).
        """
        batch, n, _ = x.shape
        query, key, value = (
            layer(x).view(batch, n, _HEADS, EMBEDDING // _HEADS).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(2, 3) / sqrt(EMBEDDING)  # ML-Agents' scale: of all heads together
        weights = scores.masked_fill(~there[:, None, None, :], _NEVER).softmax(dim=3)
        gathered: Tensor = (weights @ value).transpose(1, 2).reshape(batch, n, EMBEDDING)
        return gathered


class _Embedding(nn.Module):
    """Things of one set, each beside what the agent knows of itself."""

    def __init__(self, width: int, beside: int) -> None:
        super().__init__()
        self.linear = attention_linear(beside + width, EMBEDDING)
        self._beside = beside

    def forward(self, things: Tensor, known: Tensor | None) -> Tensor:
        """Embed [B, n, width] beside [B, beside]: [B, n, EMBEDDING]."""
        if known is None:
            return nn.functional.silu(self.linear(things))
        # linear(cat(known, thing)), without repeating what is the same for all things of a row
        of_known, of_things = self.linear.weight[:, : self._beside], self.linear.weight[:, self._beside :]
        shared = nn.functional.linear(known, of_known, self.linear.bias).unsqueeze(1)
        return nn.functional.silu(shared + nn.functional.linear(things, of_things))

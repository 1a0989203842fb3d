"""Observations of a varying number of things (ML-Agents' buffer sensors): attention among them, then their mean.

Each thing is embedded together with the agent's other observations and attends to all things; the mean over the things
that are present is the encoding. Rows of zeros are padding without any influence, and the order of rows has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import torch
from torch import Tensor, nn

from headrace.queues.specs import ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.layers import attention_linear, layer_norm

# Attention among a varying number of things, for encoders of sets and critics of groups.

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


EMBEDDING = 128
"""Width of the encoding, whatever the settings, as in ML-Agents."""


class SetEncoder(nn.Module):
    """All sets of a behaviour to one vector, by `residual_attention`; see `body.KindEncoder`.

    Args:
        observations: the sets, each of the shape [n, width].
        design: of the policy.
        beside: width of the encodings of the agent's other observations, 0 without any.

    Raises:
        StageError: if a set holds a goal for a hypernetwork.
    """

    size = EMBEDDING
    goals = ()

    def __init__(self, observations: Sequence[ObservationSpec], design: PolicyDesign, beside: int) -> None:
        super().__init__()
        for observation in observations:
            if observation.goal and design.hypernetwork:
                raise StageError(
                    f"{design.spec.behavior_id}: observation {observation.name!r} is a set of things (shape "
                    f"{observation.shape}) and a goal: a hypernetwork takes goals from vectors and images only; "
                    f"set {design.key}.goal_conditioning_type to none, or give the goal as a vector"
                )
        self.own = attention_linear(beside, EMBEDDING) if beside else None
        known = EMBEDDING if beside else 0
        self.embeddings = nn.ModuleList(_Embedding(observation.shape[1], known) for observation in observations)
        self.query = attention_linear(EMBEDDING, EMBEDDING)
        self.key = attention_linear(EMBEDDING, EMBEDDING)
        self.value = attention_linear(EMBEDDING, EMBEDDING)
        self.out = attention_linear(EMBEDDING, EMBEDDING)

    def forward(self, observations: Sequence[Tensor], beside: Tensor | None) -> tuple[Tensor]:
        """Encode B rows.

        Args:
            observations: [B, n, width] of each set, of any dtype; only read.
            beside: [B, beside] encodings of the agent's other observations, None without any.

        Returns:
            [B, EMBEDDING], zeros where all sets are empty.
        """
        things = [things.float() for things in observations]
        there = torch.cat([(each != 0).any(dim=2) for each in things], dim=1)
        embedded = self._embed(things, beside)
        return (residual_attention(embedded, there, self.query, self.key, self.value, self.out),)

    def _embed(self, sets: Sequence[Tensor], own: Tensor | None) -> Tensor:
        """Embed every thing of every set, beside the agent's other observations: [B, N, EMBEDDING]."""
        known = nn.functional.silu(self.own(own)) if self.own is not None else None
        embedded = [embed(each, known) for embed, each in zip(self.embeddings, sets, strict=True)]
        return torch.cat(embedded, dim=1)


class _Embedding(nn.Module):
    """Things of one set, each beside the agent's other observations."""

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

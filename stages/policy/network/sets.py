"""Encoder for observations with a varying number of entities (ML-Agents' buffer sensors): attention, then the mean.

Each entity is embedded together with the agent's other observations and attends to all entities; the encoding is the
mean over all entities present. All-zero rows are padding and have no influence, nor does the order of the rows.
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

# Attention among a varying number of entities, for set encoders and group critics.

HEADS = 4
LEAST_OF_BLAS = 400
"""The smallest matmul, in multiplications, for which torch passes a batch to BLAS. Torch computes smaller matmuls
element by element, for which `_attend_few` takes half the time."""
_NEVER = torch.finfo(torch.float32).min
"""A score that gets a softmax weight of exactly 0. Unlike -inf, this score does not produce NaN if all entities are
missing."""


def residual_attention(x: Tensor, present: Tensor, *layers: nn.Linear) -> Tensor:
    """Apply a residual self-attention block (Vaswani et al. 2017), then average over the entities present.

    Args:
        x: [B, n, W] embedded entities; W is a multiple of `HEADS`. Rows of missing entities may hold any finite
            numbers.
        present: [B, n] true where an entity is present.
        layers: linear layers from W to W: query, key, value, and the one after the heads, before the residual sum.

    Returns:
        [B, W], zeros for rows without entities.
    """
    (batch, n, width), (*projections, out) = x.shape, layers
    present = present.t()
    # From here on, the batch is the innermost axis: `_attend_few` needs it contiguous in memory.
    x = layer_norm(x.transpose(0, 1)).reshape(n * batch, width)
    attend = _attend_few if x.is_cpu and n * n * (width // HEADS) < LEAST_OF_BLAS else _attend
    x = layer_norm(x + out(attend(x, present, *projections))).view(n, batch, width)
    count = present.sum(dim=0).clamp(min=1)
    return (x * present.unsqueeze(2)).sum(dim=0) / count.unsqueeze(1)


def _attend(x: Tensor, present: Tensor, query: nn.Linear, key: nn.Linear, value: nn.Linear) -> Tensor:
    """Let each of n entities [n·B, W] attend to the entities that are present [n, B].

    The computation is written out step by step, because gradient penalties need the second derivative, which torch's
    fused attention does not have.
    """
    (n, batch), width = present.shape, x.shape[1]
    q, k, v = (layer(x).view(n, batch, HEADS, width // HEADS).permute(1, 2, 0, 3) for layer in (query, key, value))
    scores = q @ k.transpose(2, 3) / sqrt(width)  # ML-Agents scales by the width of all heads together
    weights = scores.masked_fill(~present.t()[:, None, None, :], _NEVER).softmax(dim=3)
    gathered: Tensor = (weights @ v).permute(2, 0, 1, 3).reshape(n * batch, width)
    return gathered


def _attend_few(x: Tensor, present: Tensor, query: nn.Linear, key: nn.Linear, value: nn.Linear) -> Tensor:
    """Compute the same as `_attend` element by element, for few entities, with the batch as the innermost axis."""
    (n, batch), width = present.shape, x.shape[1]
    weight = torch.cat([query.weight, key.weight, value.weight])
    bias = torch.cat([query.bias, key.bias, value.bias])
    q, k, v = torch.addmm(bias[:, None], weight, x.t()).view(3, HEADS, width // HEADS, n, batch).unbind()
    scores = (q[:, :, :, None] * k[:, :, None]).sum(dim=1) / sqrt(width)
    weights = scores.masked_fill(~present, _NEVER).softmax(dim=2)
    gathered = (weights[:, None] * v[:, :, None]).sum(dim=3)
    return gathered.view(width, n * batch).t()


EMBEDDING = 128
"""Width of the encoding, regardless of the settings, as in ML-Agents."""


class SetEncoder(nn.Module):
    """Encodes all of a behaviour's sets as one vector, with `residual_attention`; see `body.KindEncoder`.

    Args:
        observations: the specs of the sets, each with shape [n, width].
        design: the policy's design.
        context: width of the encodings of the agent's other observations; 0 if there are none.

    Raises:
        StageError: if a set holds a goal for a hypernetwork.
    """

    size = EMBEDDING
    goals = ()

    def __init__(self, observations: Sequence[ObservationSpec], design: PolicyDesign, context: int) -> None:
        super().__init__()
        for observation in observations:
            if observation.goal and design.hypernetwork:
                raise StageError(
                    f"{design.spec.behavior_id}: observation {observation.name!r} is a goal and a set of entities "
                    f"(shape {observation.shape}), but a hypernetwork accepts only vectors and images as goals; set "
                    f"{design.key}.goal_conditioning_type to none, or provide the goal as a vector"
                )
        self.own = attention_linear(context, EMBEDDING) if context else None
        shared_width = EMBEDDING if context else 0
        self.embeddings = nn.ModuleList(_Embedding(observation.shape[1], shared_width) for observation in observations)
        self.query = attention_linear(EMBEDDING, EMBEDDING)
        self.key = attention_linear(EMBEDDING, EMBEDDING)
        self.value = attention_linear(EMBEDDING, EMBEDDING)
        self.out = attention_linear(EMBEDDING, EMBEDDING)

    def forward(self, observations: Sequence[Tensor], context: Tensor | None) -> tuple[Tensor]:
        """Encode B rows.

        Args:
            observations: one tensor [B, n, width] per set, of any dtype; not modified.
            context: [B, context] encodings of the agent's other observations; None if there are none.

        Returns:
            The encoding [B, EMBEDDING], zeros if all sets are empty.
        """
        things = [things.float() for things in observations]
        present = torch.cat([(one != 0).any(dim=2) for one in things], dim=1)
        shared = nn.functional.silu(self.own(context)) if self.own is not None else None
        embedded = torch.cat([embed(one, shared) for embed, one in zip(self.embeddings, things, strict=True)], dim=1)
        return (residual_attention(embedded, present, self.query, self.key, self.value, self.out),)


class _Embedding(nn.Module):
    """Embeds one set's entities, each together with the agent's other observations."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.linear = attention_linear(context + width, EMBEDDING)
        self._context = context

    def forward(self, things: Tensor, shared: Tensor | None) -> Tensor:
        """Embed entities [B, n, width] together with `shared` [B, context]; return [B, n, EMBEDDING]."""
        if shared is None:
            return nn.functional.silu(self.linear(things))
        # Equals linear(cat(shared, thing)), without repeating the part that all entities in a row share.
        of_shared, of_things = self.linear.weight[:, : self._context], self.linear.weight[:, self._context :]
        of_context = nn.functional.linear(shared, of_shared, self.linear.bias).unsqueeze(1)
        return nn.functional.silu(of_context + nn.functional.linear(things, of_things))

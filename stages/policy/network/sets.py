"""Observations of a varying number of things (ML-Agents' buffer sensors): attention among them, then their mean.

Each thing is embedded together with the agent's other observations and attends to all things; the mean over the things
that are present is the encoding. Rows of zeros are padding without any influence, and the order of rows has none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headrace.queues.specs import ObservationSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.attention import residual_attention
from headrace.stages.policy.network.layers import attention_linear

EMBEDDING = 128
"""Width of the encoding, whatever the settings, as in ML-Agents."""


class SetEncoder(nn.Module):
    """All sets of a behaviour to one vector, by `residual_attention`; see `encoding.KindEncoder`.

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

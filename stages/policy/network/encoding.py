"""All observations of a behaviour side by side, each by the encoder of its kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.queues.specs import ObservationSpec
from headrace.stages.loading import load_attribute
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.inputs import Inputs
from headrace.stages.policy.observations import ObservationLayout


class KindEncoder(Protocol):
    """A torch module that encodes all observations of one kind, as `ObservationKind.encoder` names it.

    Attributes:
        size: width of all that `forward` gives.
        goals: numbers and widths of those encodings that make the weights of a hypernetwork.
    """

    size: int
    goals: Sequence[tuple[int, int]]

    def __init__(self, observations: Sequence[ObservationSpec], design: PolicyDesign, beside: int) -> None:
        """Make the encoder of these observations, at least one, beside features of the width `beside`.

        Raises:
            StageError: if one of them can't be encoded.
        """
        ...

    def __call__(self, observations: Sequence[Tensor], beside: Tensor | None) -> Sequence[Tensor]:
        """Encode B rows.

        Args:
            observations: [B, *shape] of each, in its own dtype; only read.
            beside: [B, beside] encodings of the kinds before this one; None for nothing.

        Returns:
            Encodings [B, …], which stand behind those of the kinds before.
        """
        ...


class Encoders(nn.Module):
    """Flat observations as they are, and what the encoder of each other kind gives.

    Observations that hold the goal are among them like all others, and with goal conditioning by a hypernetwork once
    more apart.

    Attributes:
        by_kind: name of the kind, encoder, and where its observations are among `ObservationLayout.others`.
        size: width of all side by side.
        goal_vectors: columns of the matrix of vectors that a hypernetwork is made of.
        goal_size: width of the goals; 0 where nothing is conditioned on them.

    Raises:
        StageError: if an encoder does not fit its observation, or a set holds a goal for a hypernetwork.
    """

    def __init__(self, design: PolicyDesign) -> None:
        super().__init__()
        specs, layout = design.spec.observations, ObservationLayout(design.spec)
        self.goal_vectors = layout.goals if design.hypernetwork else ()
        self.size = layout.vector_size
        self.goal_size = sum(columns.stop - columns.start for columns in self.goal_vectors)
        self.by_kind: list[tuple[str, KindEncoder, list[int]]] = []
        for name, kind in OBSERVATION_KINDS.items():
            places = [at for at, index in enumerate(layout.others) if specs[index].kind == name]
            if not places or kind.encoder is None:
                continue
            make = load_attribute(kind.encoder, None, "observation encoder")
            encoder = make([specs[layout.others[at]] for at in places], design, self.size)
            self.add_module(f"{name}s", encoder)
            self.by_kind.append((name, encoder, places))
            self.size += encoder.size
            self.goal_size += sum(width for _, width in encoder.goals)

    def forward(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """Encode B rows: [B, size], and the goals [B, goal_size] (None where nothing is conditioned on them)."""
        features = inputs.vectors
        goals = [features[:, columns] for columns in self.goal_vectors]
        for _, encoder, places in self.by_kind:
            parts = encoder([inputs.others[at] for at in places], features if features.shape[1] else None)
            goals += [parts[number] for number, _ in encoder.goals]
            features = _side_by_side([features, *parts])
        return features, _side_by_side(goals) if goals else None


def _side_by_side(parts: list[Tensor]) -> Tensor:
    wide = [part for part in parts if part.shape[1]] or parts[:1]
    return torch.cat(wide, dim=1) if len(wide) > 1 else wide[0]

"""All observations of a behaviour side by side, each by the encoder of its kind."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stages.errors import StageError
from stages.policy.design import PolicyDesign
from stages.policy.network.inputs import Inputs
from stages.policy.network.sets import EMBEDDING, SetEncoder
from stages.policy.network.visual import VisualEncoder
from stages.policy.observations import ObservationLayout


class Encoders(nn.Module):
    """Vectors as they are, `hidden_units` numbers of each image, and one encoding of all sets together.

    Observations that tell the goal are among them like all others, and with goal conditioning by a hypernetwork once
    more apart.

    Attributes:
        size: width of all side by side.
        goal_size: width of the goals; 0 where nothing is conditioned on them.

    Raises:
        StageError: if an image is too small for its encoder, or a set tells a goal for a hypernetwork.
    """

    def __init__(self, design: PolicyDesign) -> None:
        super().__init__()
        settings, layout = design.settings, ObservationLayout(design.spec)
        hyper = settings.goal_conditioning_type == "hyper"
        images: list[VisualEncoder] = []
        widths: list[int] = []
        self._images: list[int] = []
        self._sets: list[int] = []
        self._goal_images: list[int] = []
        self._goal_vectors = layout.goals if hyper else ()
        for at, index in enumerate(layout.others):
            observation = design.spec.observations[index]
            if observation.kind == "image":
                if observation.goal and hyper:
                    self._goal_images.append(len(images))
                self._images.append(at)
                kind = settings.vis_encode_type
                images.append(
                    VisualEncoder(observation, kind, settings.hidden_units, design.spec.behavior_id, design.key)
                )
            else:
                if observation.goal and hyper:
                    raise StageError(
                        f"{design.spec.behavior_id}: observation {observation.name!r} is a set of things (shape "
                        f"{observation.shape}) and a goal: a hypernetwork takes goals from vectors and images only; "
                        f"set {design.key}.goal_conditioning_type to none, or give the goal as a vector"
                    )
                self._sets.append(at)
                widths.append(observation.shape[1])
        self.images = nn.ModuleList(images)
        self.size = layout.vector_size + len(images) * settings.hidden_units
        self.sets = SetEncoder(widths, self.size) if widths else None
        if widths:
            self.size += EMBEDDING
        self.goal_size = sum(columns.stop - columns.start for columns in self._goal_vectors)
        self.goal_size += len(self._goal_images) * settings.hidden_units

    def forward(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """Encode B rows: [B, size], and the goals [B, goal_size] (None where nothing is conditioned on them)."""
        images = [encoder(inputs.others[at]) for at, encoder in zip(self._images, self.images, strict=True)]
        features = _side_by_side([inputs.vectors, *images])
        if self.sets is not None:
            own = features if features.shape[1] else None
            features = _side_by_side([features, self.sets([inputs.others[at] for at in self._sets], own)])
        if not self.goal_size:
            return features, None
        goals = [inputs.vectors[:, columns] for columns in self._goal_vectors]
        return features, _side_by_side([*goals, *(images[i] for i in self._goal_images)])


def _side_by_side(parts: list[Tensor]) -> Tensor:
    wide = [part for part in parts if part.shape[1]] or parts[:1]
    return torch.cat(wide, dim=1) if len(wide) > 1 else wide[0]

"""The acting part of a policy as a torch module: a body and one layer for all action heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.body import NetworkBody
from headrace.stages.policy.network.flat_parameters import seeded, write_named
from headrace.stages.policy.network.inputs import Inputs
from headrace.stages.policy.network.layers import linear
from headrace.stages.policy.network.transfers import host_copies

MU_GAIN = 0.2
LOGITS_GAIN = 0.1


class ActorNetwork(nn.Module):
    """Gives action heads: means, log σ if the design is squashed, then the logits of each branch.

    A Gaussian that is not squashed has its `log_sigma` [C] as a parameter of its own.
    """

    def __init__(self, design: PolicyDesign) -> None:
        super().__init__()
        actions = design.spec.actions
        self.body = NetworkBody(design)
        self.action = linear(self.body.encoding_size, design.head_size)
        gaussian = actions.continuous_size * (2 if design.squashed else 1)
        with torch.no_grad():
            self.action.weight[:gaussian] *= MU_GAIN
            self.action.weight[gaussian:] *= LOGITS_GAIN
        self.log_sigma: nn.Parameter | None = None
        if actions.continuous_size and not design.squashed:
            self.log_sigma = nn.Parameter(torch.zeros(actions.continuous_size))
        self._plain = design.plain

    def forward(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """Action heads [B, H] of B rows, and the memories after each sequence."""
        encoding, memories = self.body(inputs)
        return self.action(encoding), memories

    def acting_tensors(self) -> dict[str, NDArray[np.float32]]:
        """All parameters by the names and shapes of `PolicyUpdate.layout`, without the normaliser's; copies.

        Of a plain design that is `policy_layout` (matrices [in, out]), else it is the parameters by their own names.
        """
        return host_copies(self.acting_views(dict(self.named_parameters())))

    def load_acting(self, tensors: Mapping[str, Any]) -> None:
        """Load `acting_tensors()`, of a policy update or a file; the normaliser's among them are ignored.

        Raises:
            StageError: naming the tensor that is missing, unknown or of another shape; nothing is changed then.
        """
        write_named(self.acting_views(dict(self.named_parameters())), without_normalizer(tensors), "policy")

    def acting_views(self, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of the parameters' names and shapes, or for a plain design views of them, by the layout's names."""
        detached = {name: tensor.detach() for name, tensor in named.items()}
        if not self._plain:
            return detached
        layers = [at for at, module in enumerate(self.body.layers) if isinstance(module, nn.Linear)]
        of_layout = {f"body.{number}": f"body.layers.{at}" for number, at in enumerate(layers)} | {"action": "action"}
        views = {}
        for new, own in of_layout.items():
            views[f"{new}.weight"] = detached[f"{own}.weight"].T
            views[f"{new}.bias"] = detached[f"{own}.bias"]
        if "log_sigma" in detached:
            views["log_sigma"] = detached["log_sigma"]
        return views


def actor_tensors(design: PolicyDesign) -> list[tuple[str, tuple[int, ...]]]:
    """(name, shape) of the parameters of a design's actor, found by making one."""
    return [(name, tuple(parameter.shape)) for name, parameter in untrained_actor(design).named_parameters()]


def untrained_actor(design: PolicyDesign) -> ActorNetwork:
    """Make a design's actor, to be loaded; torch's own randomness stays untouched."""
    actor = seeded(np.random.default_rng(0), lambda: ActorNetwork(design))
    return actor.requires_grad_(False).eval()


def without_normalizer(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of a policy that are weights."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("normalizer.")}

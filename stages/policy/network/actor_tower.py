"""The actor of a network with any kind of critic, seen as one tower of `protocol.Perceptrons`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.modular import FlatActor
from headrace.stages.policy.network.products import HiddenProducts


class ActorTower:
    """See `protocol.Perceptrons`; views of the network's own parameters.

    Args:
        network: a module with an actor and other parts.
        design: the actor's, which is plain and not squashed.
    """

    def __init__(self, network: FlatActor[Any], design: PolicyDesign) -> None:
        assert design.plain, "other actors are more than a perceptron"
        self._network = network
        self.activation: str = design.settings.activation
        self.layers = len(design.settings.widths)
        self.products = HiddenProducts(design.bf16)
        self.gradients = network.gradients
        self.parameters = self.named_views(network.values)

    def named_views(self, flat: Tensor) -> dict[str, Tensor]:
        """The actor's views into a vector as long as the network's gradients; see the protocol."""
        prefix = "actor."
        named = self._network.named_views(flat)
        own = {name.removeprefix(prefix): view for name, view in named.items() if name.startswith(prefix)}
        views: dict[str, Tensor] = self._network.module.actor.acting_views(own)
        for name, view in views.items():
            if name.startswith("body."):
                views[name] = view[None] if name.endswith("weight") else view[None, None]
        return views

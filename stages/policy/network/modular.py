"""An actor and a critic of any design: images, sets, goals, memory, a network of the user's own (torch).

For vectors alone `actor_critic` does the same faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.actor import ActorNetwork
from headrace.stages.policy.network.body import NetworkBody
from headrace.stages.policy.network.flat_parameters import FlatParameters, seeded
from headrace.stages.policy.network.inputs import Inputs


class WithActor(nn.Module):
    """A module with an actor, and other parts that are trained together with it."""

    actor: ActorNetwork


Trained = TypeVar("Trained", bound=WithActor)


class FlatActor(FlatParameters[Trained]):
    """See `protocol.TrainedActor`: a module with an actor in it, and any other parts, which may share its body."""

    def __init__(self, module: Trained, device: str, shared: bool = False) -> None:
        super().__init__(module, device)
        self.log_sigma: Tensor | None = module.actor.log_sigma
        self._shared = shared

    @property
    def acting(self) -> Tensor:
        """Which of `values` the actor needs; see the protocol."""
        of_actor = torch.zeros_like(self.values)
        for name, view in self.named_views(of_actor).items():
            view.fill_(name.startswith("actor."))
        return of_actor

    @property
    def parts(self) -> Tensor:
        """Which of `values` are the actor's, and which the others'; see the protocol."""
        acting = self.acting
        return torch.ones_like(acting)[None] if self._shared else torch.stack([acting, 1.0 - acting])

    def acting_tensors(self) -> dict[str, NDArray[np.float32]]:
        """The actor's parameters by `ActorNetwork`'s names; copies, on the host."""
        return self.module.actor.acting_tensors()

    def load_acting(self, tensors: Mapping[str, Any]) -> None:
        """Load `acting_tensors()`; see the protocol."""
        self.module.actor.load_acting(tensors)


class ModularActorCritic(FlatActor["_ActorAndCritic"]):
    """See `protocol.ActorCriticNetwork`. The critic has a body of its own, of the actor's shape, or shares the actor's.

    Its arguments and errors are those of `factory.make_actor_critic`.
    """

    def __init__(
        self, design: PolicyDesign, signals: int, shared_critic: bool, random: np.random.Generator, device: str = "cpu"
    ) -> None:
        super().__init__(seeded(random, lambda: _ActorAndCritic(design, signals, shared_critic)), device, shared_critic)

    def __call__(self, inputs: Inputs, critic_memories: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Heads [B, H] and values [B, S]; see the protocol."""
        actor, critic = self.module.actor, self.module.critic
        encoding, _ = actor.body(inputs)
        of_critic = encoding if critic is None else critic(inputs._replace(memories=critic_memories))[0]
        return actor.action(encoding), self.module.value(of_critic)

    def heads(self, inputs: Inputs) -> Tensor:
        """Heads [B, H]; see the protocol."""
        found: Tensor = self.module.actor(inputs)[0]
        return found

    def evaluate(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """Values [B, S] and the critic's memories; see the protocol."""
        body = self.module.actor.body if self.module.critic is None else self.module.critic
        encoding, memories = body(inputs)
        return self.module.value(encoding), memories


class _ActorAndCritic(WithActor):
    """The two that are trained together."""

    def __init__(self, design: PolicyDesign, signals: int, shared_critic: bool) -> None:
        super().__init__()
        self.actor = ActorNetwork(design)
        self.critic: NetworkBody | None = None if shared_critic else NetworkBody(design)
        width = self.actor.body.encoding_size
        self.value = value_heads(width, signals)


def value_heads(width: int, signals: int) -> nn.Linear:
    """One head per reward signal, Xavier uniform: each is a layer of its own with one output."""
    heads = nn.Linear(width, signals)
    bound = sqrt(6.0 / (width + 1))
    with torch.no_grad():
        heads.weight.uniform_(-bound, bound)
        heads.bias.zero_()
    return heads

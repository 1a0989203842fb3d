"""An actor like PPO's, with a critic of whole groups."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from stages.policy.design import PolicyDesign
from stages.policy.network.actor import ActorNetwork
from stages.policy.network.flat import seeded
from stages.policy.network.inputs import Inputs
from stages.policy.network.modular import FlatActor, WithActor
from stages.trainer.poca.critic import GroupCritic, Teams


class GroupActorCritic(FlatActor["_ActorAndGroupCritic"]):
    """See `stages.policy.network.protocol.TrainedActor`.

    Args:
        design: observations, actions, sizes, memory.
        signals: number of reward signals S.
        random: draws the initial weights, on any device the same.
        device: where the parameters live, such as `cpu` or `cuda:0`.

    Raises:
        StageError: if an encoder does not fit its observation, or the user's network is not what it should be.
    """

    def __init__(self, design: PolicyDesign, signals: int, random: np.random.Generator, device: str = "cpu") -> None:
        super().__init__(seeded(random, lambda: _ActorAndGroupCritic(design, signals)), device)

    def heads(self, inputs: Inputs) -> Tensor:
        """The actor's heads [B, H]."""
        found: Tensor = self._module.actor(inputs)[0]
        return found

    def judge(self, teams: Teams) -> tuple[Tensor, Tensor]:
        """Values [B, S] of the agents' groups, and counterfactual baselines [B, S]."""
        values, baselines, _ = self._module.critic(teams)
        return values, baselines

    def evaluate(self, teams: Teams, /) -> tuple[Tensor, Tensor | None]:
        """Both side by side [B, 2S], and the critic's memories [B / L, 2m] after each sequence (None without)."""
        values, baselines, memories = self._module.critic(teams)
        return torch.cat([values, baselines], dim=1), memories


class _ActorAndGroupCritic(WithActor):
    """What is trained together."""

    def __init__(self, design: PolicyDesign, signals: int) -> None:
        super().__init__()
        self.actor = ActorNetwork(design)
        self.critic = GroupCritic(design, signals)

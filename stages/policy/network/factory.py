"""Makes the network that trains a design: the fast one for plain designs, else the general one."""

from __future__ import annotations

import numpy as np

from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.actor_critic import ActorCritic
from headrace.stages.policy.network.modular import ModularActorCritic
from headrace.stages.policy.network.protocol import ActorCriticNetwork


def make_actor_critic(
    design: PolicyDesign, signals: int, shared_critic: bool, random: np.random.Generator, device: str = "cpu"
) -> ActorCriticNetwork:
    """Make an actor and a critic for a design.

    Args:
        design: observations, actions, sizes, memory.
        signals: number of reward signals S.
        shared_critic: true if the critic uses the actor's body, and with it the actor's memory.
        random: draws the initial weights, on any device the same.
        device: where the parameters live, such as `cpu` or `cuda:0`.

    Raises:
        StageError: if an encoder does not fit its observation, or the user's network is not what it should be.
    """
    if design.plain and not design.squashed:
        return ActorCritic(design, signals, shared_critic, random, device)
    return ModularActorCritic(design, signals, shared_critic, random, device)

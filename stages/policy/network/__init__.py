"""The trainable networks in torch: network bodies, actors, and actor-critics."""

from headrace.stages.policy.network.actor_critic import ActorCritic, ModularActorCritic, make_actor_critic
from headrace.stages.policy.network.body import ActorNetwork, NetworkBody
from headrace.stages.policy.network.flat_parameters import FlatParameters, seeded
from headrace.stages.policy.network.layers import Inputs, linear

__all__ = [
    "ActorCritic",
    "ActorNetwork",
    "FlatParameters",
    "Inputs",
    "ModularActorCritic",
    "NetworkBody",
    "linear",
    "make_actor_critic",
    "seeded",
]

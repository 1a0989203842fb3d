"""The networks that learn, in torch: bodies of every kind, actors, actors with critics."""

from stages.policy.network.actor import ActorNetwork
from stages.policy.network.actor_critic import ActorCritic
from stages.policy.network.body import NetworkBody
from stages.policy.network.factory import make_actor_critic
from stages.policy.network.flat_parameters import FlatParameters, seeded
from stages.policy.network.inputs import Inputs
from stages.policy.network.layers import linear
from stages.policy.network.modular import ModularActorCritic

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

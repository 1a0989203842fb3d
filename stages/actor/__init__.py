"""The actor: acts in the environments by the policies, and is the source of trajectories.

It runs the environment stage and the agent processor in one task.
"""

from headrace.stages.actor.actor import Actor, ActorPort
from headrace.stages.actor.credits import CreditGate

__all__ = ["Actor", "ActorPort", "CreditGate"]

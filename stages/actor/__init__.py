"""The actor: environment stage and agent processor in one task, as the source of trajectories."""

from headrace.stages.actor.actor import Actor, ActorPort
from headrace.stages.actor.credits import CreditGate

__all__ = ["Actor", "ActorPort", "CreditGate"]

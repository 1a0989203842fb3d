"""The actor runs the environment stage and the agent processor in one task, and is the source of trajectories."""

from headrace.stages.actor.actor import Actor, ActorPort
from headrace.stages.actor.credits import CreditGate

__all__ = ["Actor", "ActorPort", "CreditGate"]

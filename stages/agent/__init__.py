"""The agent processor, which turns environment steps into trajectories."""

from headrace.stages.agent.processor import AgentProcessor

__all__ = ["AgentProcessor"]

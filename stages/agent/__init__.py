"""The agent processor: from steps to trajectories."""

from stages.agent.processor import AgentProcessor

__all__ = ["AgentProcessor"]

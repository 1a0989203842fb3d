"""The agent processor: from steps to trajectories."""

from headrace.stages.agent.processor import AgentProcessor

__all__ = ["AgentProcessor"]

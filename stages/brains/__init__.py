"""Brains that do not learn: scripts, models and random choice. Each brain decides as a policy does (docs/brains.md)."""

from headrace.stages.brains.kinds import StandIn, check_brain, make_brain

__all__ = ["StandIn", "check_brain", "make_brain"]

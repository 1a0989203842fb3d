"""Brains that do not learn: scripts, models and chance, each of which decides as a policy does (docs/brains.md)."""

from headrace.stages.brains.making import check_brain, make_brain
from headrace.stages.brains.stand_in import StandIn

__all__ = ["StandIn", "check_brain", "make_brain"]

"""Soft actor-critic (imports torch)."""

from headrace.stages.trainer.sac.trainer import SACTrainer

__all__ = ["SACTrainer"]

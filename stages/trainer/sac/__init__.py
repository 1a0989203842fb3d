"""Soft actor-critic (imports torch)."""

from stages.trainer.sac.trainer import SACTrainer

__all__ = ["SACTrainer"]

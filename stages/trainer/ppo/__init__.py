"""Proximal policy optimisation (imports torch)."""

from stages.trainer.ppo.trainer import PPOTrainer

__all__ = ["PPOTrainer"]

"""Proximal policy optimisation (imports torch)."""

from headrace.stages.trainer.ppo.trainer import PPOTrainer

__all__ = ["PPOTrainer"]

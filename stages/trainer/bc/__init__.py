"""Behavioural cloning, `trainer_type: bc`, which only imitates (imports torch)."""

from headrace.stages.trainer.bc.trainer import BCTrainer

__all__ = ["BCTrainer"]

"""Behavioural cloning, `trainer_type: bc`: imitation alone (imports torch)."""

from headrace.stages.trainer.bc.trainer import BCTrainer

__all__ = ["BCTrainer"]

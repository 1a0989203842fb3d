"""Behavioural cloning, `trainer_type: bc`, which learns only by imitation (imports torch)."""

from headrace.stages.trainer.bc.trainer import BCTrainer

__all__ = ["BCTrainer"]

"""The trainer that imitates and does nothing else, `trainer_type: bc`."""

from stages.trainer.bc.trainer import BCTrainer

__all__ = ["BCTrainer"]

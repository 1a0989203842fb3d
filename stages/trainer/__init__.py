"""Trainers, and what they share. A trainer's own module, and torch with it, is imported where it is built."""

from stages.trainer.protocol import Trainer, TrainerContext
from stages.trainer.report import TrainerPort, TrainerReport
from stages.trainer.schedules import Schedule
from stages.trainer.stage import TrainerStage

__all__ = ["Schedule", "Trainer", "TrainerContext", "TrainerPort", "TrainerReport", "TrainerStage"]

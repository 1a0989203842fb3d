"""Trainers, and the code they share. A trainer's module (and with it torch) is imported only to build the trainer."""

from headrace.stages.trainer.protocol import Schedule, Trainer, TrainerContext
from headrace.stages.trainer.report import TrainerPort, TrainerReport
from headrace.stages.trainer.stage import TrainerStage

__all__ = ["Schedule", "Trainer", "TrainerContext", "TrainerPort", "TrainerReport", "TrainerStage"]

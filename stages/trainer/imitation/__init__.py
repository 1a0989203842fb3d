"""Imitation: demonstrations, where they come from, and learning from them (`cloning`, which needs torch)."""

from headrace.stages.trainer.imitation.demonstrations import Demonstrations
from headrace.stages.trainer.imitation.loading import load_demonstrations
from headrace.stages.trainer.imitation.source import demonstration_batches

__all__ = ["Demonstrations", "demonstration_batches", "load_demonstrations"]

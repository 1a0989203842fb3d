"""Imitation: demonstrations, their sources, and learning from them (`cloning`, which needs torch)."""

from stages.trainer.imitation.demonstrations import Demonstrations
from stages.trainer.imitation.loading import load_demonstrations, load_recorded
from stages.trainer.imitation.source import demonstration_batches

__all__ = ["Demonstrations", "demonstration_batches", "load_demonstrations", "load_recorded"]

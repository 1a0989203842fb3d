"""Imitation: demonstrations, where they come from, and learning from them (`cloning`, which needs torch)."""

from stages.trainer.imitation.demonstrations import Demonstrations
from stages.trainer.imitation.feeding import demonstration_batches
from stages.trainer.imitation.loading import load_demonstrations, load_recorded

__all__ = ["Demonstrations", "demonstration_batches", "load_demonstrations", "load_recorded"]

"""MA-POCA, multi-agent posthumous credit assignment (imports torch)."""

from stages.trainer.poca.trainer import POCATrainer

__all__ = ["POCATrainer"]

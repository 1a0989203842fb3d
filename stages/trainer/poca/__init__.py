"""MA-POCA, multi-agent posthumous credit assignment (imports torch)."""

from headrace.stages.trainer.poca.trainer import POCATrainer

__all__ = ["POCATrainer"]

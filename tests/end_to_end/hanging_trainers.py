"""Trainers that hang; apart from `hanging_stages.py`, as stages need no torch."""

from __future__ import annotations

from hanging_stages import hang  # type: ignore[import-not-found]  # beside the YAML

from headrace.stages.trainer.ppo import PPOTrainer


class LockingTrainer(PPOTrainer):
    """Never comes to the end of its third update, in C."""

    def learn(self) -> int:
        if self.version == 2:
            hang("lock")
        return super().learn()

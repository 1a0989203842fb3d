"""Trainers that do what they should not; apart from `misbehaving_stages.py`, as stages need no torch."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headrace.queues.messages import PolicyUpdate
from headrace.stages import TrajectoryBatch
from headrace.stages.trainer.ppo import PPOTrainer
from headrace.stages.trainer.protocol import Trainer, TrainerContext


class StrangePolicies(Trainer):
    """A trainer whose policies no actor can act with."""

    step, version, rows_per_update = 0, 0, 64

    def __init__(self, context: TrainerContext) -> None:
        self._behavior = context.behavior

    def add(self, batch: TrajectoryBatch) -> None:
        return None

    def ready(self) -> bool:
        return False

    def learn(self) -> int:
        return 0

    def policy(self) -> PolicyUpdate:
        return PolicyUpdate(self._behavior, 0, np.zeros(3, np.float32), (("table", (3,)),), 0)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        return None


class SlowTrainer(PPOTrainer):
    """Takes `UPDATE_S` seconds for its third update, and `DISK_S` for a file of each checkpoint; makes files as it begins."""

    def learn(self) -> int:
        if self.version == 2 and "UPDATE_S" in os.environ:
            Path("updates").touch()
            time.sleep(float(os.environ["UPDATE_S"]))
        return super().learn()

    def save_bulk(self, folder: Path) -> None:
        if "DISK_S" in os.environ:
            with (folder / "slow.bin").open("wb", buffering=0) as file:
                for _ in range(10 * int(os.environ["DISK_S"])):
                    file.write(b"headrace")
                    time.sleep(0.1)

"""A custom reward signal, which rewards visits to rarely visited places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace import RewardSignal, RewardSignalSettings, StageError, TrainerContext, Transitions


class Visits(RewardSignal):
    """Rewards a step by 1 / √n, where n steps have observed vectors in the same cell (Strehl & Littman, 2008).

    Args:
        name: the signal's key in the YAML.
        settings: the signal's block in the YAML.
        context: the trainer's context.
        seed: not used, as nothing is random.
        size: side lengths of a cell, in the observations' own units: one number for all, or a list.
    """

    ignores_termination = True  # novelty does not depend on the task's rules

    def __init__(
        self,
        name: str,
        settings: RewardSignalSettings,
        context: TrainerContext,
        seed: int,
        size: float | list[float] = 0.5,
    ) -> None:
        super().__init__(name, settings, context, seed)
        self._size = np.array(size, np.float32)
        if not (self._size > 0).all():
            raise StageError(f"{self.where}: size: expected numbers above 0, got {size}")
        self._visits: Counter[bytes] = Counter()

    def observe(self, vectors: NDArray[np.float32]) -> None:
        """Count new steps."""
        self._visits.update(self._cells(vectors))

    def compute(self, transitions: Transitions) -> Tensor:
        """Return the rewards of B transitions, a tensor [B], without counting these transitions."""
        cells = self._cells(transitions.inputs.vectors.cpu().numpy())
        visits = np.array([max(1, self._visits[cell]) for cell in cells], np.float32)
        return torch.from_numpy(1.0 / np.sqrt(visits)).to(transitions.rewards.device)

    def state_dict(self) -> dict[str, Any]:
        """Return the counts, without which everything would be new to a resumed run."""
        return {"cells": list(self._visits), "visits": np.array(list(self._visits.values()), np.int64)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the counts that `state_dict` returned."""
        self._visits = Counter(dict(zip(state["cells"], np.asarray(state["visits"]).tolist(), strict=True)))

    def _cells(self, vectors: NDArray[np.float32]) -> list[bytes]:
        return [row.tobytes() for row in np.floor(vectors / self._size).astype(np.int64)]

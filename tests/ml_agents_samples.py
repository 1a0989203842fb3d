"""Checkpoints that official ML-Agents wrote (`tests/data/ml_agents`), and what behaviours they are of."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config import BehaviorSettings
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec

FOLDER = Path(__file__).parent / "data" / "ml_agents"


@dataclass(frozen=True)
class Sample:
    """One checkpoint."""

    name: str
    trainer_type: str
    actions: ActionSpec
    step: int
    normalize: bool = True
    shared_critic: bool = False

    @property
    def path(self) -> Path:
        """The file."""
        return FOLDER / self.name / "Simple" / "checkpoint.pt"

    @property
    def spec(self) -> BehaviorSpec:
        """What its agents see and do."""
        return BehaviorSpec("Simple", (ObservationSpec("goal", (1,)),), self.actions)

    def settings(self, **network: Any) -> BehaviorSettings:
        """The block of the YAML that it was trained with; `network` goes to `network_settings`."""
        settings = {"hidden_units": 16, "num_layers": 2, "normalize": self.normalize, **network}
        own = {"shared_critic": True} if self.shared_critic else {}
        return BehaviorSettings.model_validate(
            {"trainer_type": self.trainer_type, "hyperparameters": own, "network_settings": settings}
        )

    def played(self) -> dict[str, NDArray[np.float64]]:
        """What ML-Agents computed with it."""
        return {
            name: np.array(rows) for name, rows in json.loads((FOLDER / self.name / "played.json").read_text()).items()
        }


SAMPLES = {
    sample.name: sample
    for sample in (
        Sample("ppo_hybrid", "ppo", ActionSpec(2, (3, 2)), 1248),
        Sample("ppo_shared_critic", "ppo", ActionSpec(0, (3, 2)), 1214, normalize=False, shared_critic=True),
        Sample("sac_continuous", "sac", ActionSpec(2), 608),
        Sample("sac_discrete", "sac", ActionSpec(0, (3, 2)), 601),
    )
}

"""The environment's own reward."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stages.trainer.rewards.protocol import RewardSignal
from stages.trainer.transitions import Transitions


class Extrinsic(RewardSignal):
    """Hands on what the environment gave; learns nothing."""

    def rewards(self, transitions: Transitions) -> NDArray[np.float32]:
        """The environment's reward [B] of each transition; a new array."""
        return np.array(transitions.rewards.cpu().numpy(), np.float32)

"""The environment's own reward."""

from __future__ import annotations

from torch import Tensor

from headrace.stages.trainer.rewards.signal import RewardSignal
from headrace.stages.trainer.transitions import Transitions


class Extrinsic(RewardSignal):
    """Returns the environment's reward; learns nothing."""

    def compute(self, transitions: Transitions) -> Tensor:
        """The environment's reward [B] of each transition."""
        return transitions.rewards

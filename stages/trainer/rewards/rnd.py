"""Random network distillation (RND): a reward for observations that are rare.

Burda, Edwards, Storkey & Klimov (2018), "Exploration by Random Network Distillation". A fixed random network maps
observations to features, and a second network learns to predict these features. Its error is large for observations
that it has rarely seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from headrace.config import RNDSettings
from headrace.stages.policy.network.body import NetworkBody
from headrace.stages.policy.network.flat_parameters import FlatParameters, seeded, write_named
from headrace.stages.trainer.intake import Transitions
from headrace.stages.trainer.protocol import TrainerContext
from headrace.stages.trainer.rewards.signal import NetworkSignal


class RND(NetworkSignal[NetworkBody]):
    """Rewards the predictor's error.

    As in ML-Agents, and unlike in the paper, a step is rewarded for the observation that the agent acted on, not for
    the next one. This shifts the return by one step, and the observation after a terminated episode never counts.
    """

    ignores_termination: ClassVar[bool] = True

    def __init__(self, name: str, settings: RNDSettings, context: TrainerContext, seed: int) -> None:
        super().__init__(name, settings, context, seed)
        self._target = FlatParameters(seeded(self.random, lambda: NetworkBody(self.design)), context.device)

    def build(self, settings: RNDSettings) -> NetworkBody:
        """Make the predictor; the target has the same shape, but separate weights."""
        return NetworkBody(self.design)

    def losses(self, transitions: Transitions) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean prediction error."""
        loss = self.compute(transitions).mean()
        return loss, {"Losses/RND Loss": loss}

    def compute(self, transitions: Transitions) -> Tensor:
        """Return Σ (predicted − target)² for each row."""
        inputs = self.normalized(transitions.inputs)
        with torch.no_grad():
            target, _ = self._target.module(inputs)
        predicted, _ = self.network.module(inputs)
        errors: Tensor = (predicted - target).square().sum(dim=1)
        return errors

    def state_dict(self) -> dict[str, Any]:
        """Return both networks, optimizer, normaliser and random state."""
        return {**super().state_dict(), "target": self._target.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`."""
        super().load_state_dict(state)
        with self.context.naming_behavior(f"reward signal {self.name}"):
            write_named(self._target.parameters, state["target"], "target weights")

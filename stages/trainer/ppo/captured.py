"""PPO's update with gradient steps that are captured as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from headrace.stages.policy.network.transfers import to_device
from headrace.stages.trainer.captured_step import CapturedStep, Graphs, copied
from headrace.stages.trainer.on_policy.minibatches import Minibatch, PackedColumns
from headrace.stages.trainer.on_policy.update import Coefficients
from headrace.stages.trainer.ppo.update import PPOUpdate


class _StepInputs(NamedTuple):
    """All that changes from one gradient step to the next."""

    block: PackedColumns
    others: tuple[Tensor, ...]
    """Images and sets."""
    scheduled: Tensor
    """[2 + k] learning rate, clip range, and the weights of the losses."""


class _StepOutputs(NamedTuple):
    losses: Tensor
    norms: Tensor
    log_ratios: Tensor


class CapturedPPOUpdate(PPOUpdate):
    """Trains a network without memory, alone; shuffles, `target_kl` and checks stay outside of graphs.

    Args:
        arguments: see `PPOUpdate`.
        graphs: captures the steps.
        tell: is told once why steps are not captured, if that is so.
    """

    def __init__(self, *arguments: Any, graphs: Graphs, tell: Callable[[str], None]) -> None:
        super().__init__(*arguments)
        self._captured = CapturedStep(self._step, graphs, tell)
        self._scheduled = self.network.values[:0]
        self._newest_ratios = self._scheduled

    def loss_weights(self, coefficients: Coefficients) -> Tensor:
        """See `OnPolicyUpdate`; what else is scheduled goes to the device with them."""
        weights = super().loss_weights(coefficients)
        others = torch.tensor([coefficients.learning_rate, coefficients.epsilon])
        self._scheduled = torch.cat([to_device(others, weights.device), weights])
        return weights

    def advance(
        self, minibatch: Minibatch, coefficients: Coefficients, weights: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Make a gradient step, by its graph once there is one."""
        assert minibatch.block is not None, "there is no memory"
        found = self._captured(_StepInputs(minibatch.block, minibatch.inputs.others, self._scheduled))
        self.adam.steps += 1
        if not self._measuring:
            return found.losses.clone(), None
        losses, norms, log_ratios = copied(found)
        self._log_ratios.append(log_ratios)
        return losses, norms

    def keep_ratios(self, log_ratios: Tensor) -> None:
        """Keep those of the newest minibatch: whether they are measured is not known where steps are captured."""
        self._newest_ratios = log_ratios.detach()

    def _step(self, given: _StepInputs) -> _StepOutputs:
        rate, epsilon, weights = given.scheduled[0], given.scheduled[1], given.scheduled[2:]
        minibatch = Minibatch.of_block(given.block, torch.empty(0, dtype=torch.int64), given.others)
        # Torch takes a tensor [] wherever it takes a number, but its types do not say so.
        coefficients = Coefficients(0.0, 0.0, cast("float", epsilon))
        losses = self.find_gradients(minibatch, coefficients, weights)
        norms = self._descend(rate)
        return _StepOutputs(losses, self.norms() if norms is None else norms, self._newest_ratios)

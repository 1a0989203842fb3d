"""The update of a behaviour's trainer: with gradients by hand, by autograd, or captured for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from headrace.config import SACHyperparameters
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.transfers import to_device
from headrace.stages.trainer.captured_step import CapturedStep, Graphs, copied, graphs_for, say_uncaptured
from headrace.stages.trainer.gradients import say_autograd
from headrace.stages.trainer.protocol import TrainerContext
from headrace.stages.trainer.sac.measures import UpdateMeasures
from headrace.stages.trainer.sac.minibatch import ReplayMinibatch
from headrace.stages.trainer.sac.update import SACUpdate

# SAC's update with gradient steps that are captured as CUDA graphs.


class _Drawn(NamedTuple):
    """All that changes from one gradient step to the next: see `SACUpdate.step`."""

    batch: ReplayMinibatch
    rewards: Tensor
    discounts: Tensor
    noise: Tensor
    learning_rate: Tensor
    """[]"""


class CapturedSACUpdate(SACUpdate):
    """Trains networks without memory, alone.

    Args:
        arguments: see `SACUpdate`.
        graphs: captures the steps.
        tell: is told once why steps are not captured, if that is so.
    """

    def __init__(self, *arguments: Any, graphs: Graphs, tell: Callable[[str], None]) -> None:
        super().__init__(*arguments)
        # Perceptrons keep their results in buffers, which they replace for another number of rows.
        self._captured = CapturedStep(self._step, graphs, tell, most=1)
        self._rate = 0.0
        self._rate_there = torch.zeros((), device=self.actor.values.device)
        """The same on the device."""

    def step(
        self,
        batch: ReplayMinibatch,
        rewards: Tensor,
        discounts: Tensor,
        noise: Tensor,
        learning_rate: float,
        share: float = 1.0,
    ) -> UpdateMeasures:
        """One gradient step of all networks, by its graph once there is one; see `SACUpdate`."""
        if learning_rate != self._rate:
            self._rate = learning_rate
            self._rate_there = to_device(torch.tensor(learning_rate), self._rate_there.device)
        found = self._captured(_Drawn(batch, rewards, discounts, noise, self._rate_there))
        for name, adam in self._adams.items():
            adam.steps += name != "coefficients" or self._learns_coefficients
        return copied(found)

    def _step(self, drawn: _Drawn) -> UpdateMeasures:
        # Torch takes a tensor [] wherever it takes a number, but its types do not say so.
        rate = cast("float", drawn.learning_rate)
        return super().step(drawn.batch, drawn.rewards, drawn.discounts, drawn.noise, rate)


def make_update(
    context: TrainerContext,
    design: PolicyDesign,
    hyperparameters: SACHyperparameters,
    signals: int,
    random: np.random.Generator,
) -> SACUpdate:
    """Make the update that the settings ask for; says at the start why gradients are found by autograd, if they are."""
    arguments = design, hyperparameters, signals, random, context.device, context.replicas
    why = _why_autograd(context, design)
    if why is not None:
        say_autograd(context, why)
    graphs, tell = graphs_for(context), partial(say_uncaptured, context)
    if graphs is not None:
        return CapturedSACUpdate(*arguments, graphs=graphs, tell=tell)
    return SACUpdate(*arguments, by_hand=why is None)


def _why_autograd(context: TrainerContext, design: PolicyDesign) -> str | None:
    """Return why gradients can't be found by hand, in words; None if they can."""
    if context.autograd:
        return "torch_settings.gradients says so"
    if not design.plain:
        return "its networks are more than perceptrons over vectors"
    if design.spec.actions.discrete_branches:
        return "some of its actions are discrete"
    if not context.device.startswith("cpu"):
        return f"it learns on {context.device}"
    return None

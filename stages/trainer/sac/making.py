"""The update of a behaviour's trainer: with gradients by hand, by autograd, or captured for a GPU."""

from __future__ import annotations

from functools import partial

import numpy as np

from headrace.config import SACHyperparameters
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.trainer.captured_step import graphs_for, say_uncaptured
from headrace.stages.trainer.gradients import say_autograd
from headrace.stages.trainer.protocol import TrainerContext
from headrace.stages.trainer.sac.captured import CapturedSACUpdate
from headrace.stages.trainer.sac.update import SACUpdate


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

"""Replaces a trainer's update by one of the same interface that computes the same numbers faster."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any, TypeVar, cast

import torch

from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.actor_critic import ActorCritic
from headrace.stages.policy.network.kernels import compiled
from headrace.stages.trainer.fast.cuda_graphs import CudaGraphs
from headrace.stages.trainer.protocol import TrainerContext

log = logging.getLogger(__name__)

Update = TypeVar("Update")

_FASTER = {
    "headrace.stages.trainer.ppo:PPOUpdate": {"cpu": "ppo:ManualPPOUpdate", "cuda": "ppo:CapturedPPOUpdate"},
    "headrace.stages.trainer.sac:SACUpdate": {"cpu": "sac:ManualSACUpdate", "cuda": "sac:CapturedSACUpdate"},
    "headrace.stages.trainer.impala:ImpalaUpdate": {"cpu": "impala:ManualImpalaUpdate"},
}
"""The faster class in this folder, for an update's class and a kind of device.

A subclass of an update is never replaced, because it may compute something else.
"""


# Called by trainers through their context, so that imports point one way (docs/decisions/058).
def accelerate(update: Update, context: TrainerContext, design: PolicyDesign) -> Update:
    """Return an instance of a subclass that computes the same numbers faster; if there is none, the update itself.

    The log has one line with the choice and its reason.

    Args:
        update: an update that has not learned yet; its network is kept.
        context: the trainer's context: device, replicas and settings.
        design: the policy's design.
    """
    kind, device = type(update), torch.device(context.device).type
    by_device = _FASTER.get(f"{kind.__module__}:{kind.__qualname__}", {})
    if not context.accelerated:
        why = "torch_settings.acceleration: none"
    elif not by_device:
        why = f"nothing is faster than {kind.__name__}"
    elif device not in by_device:
        why = f"it learns on {context.device}"
    else:
        why = why_not_manual(update, design) if device == "cpu" else why_not_captured(context)
    if why:
        log.info("%s: autograd computes the gradients: %s.", context.behavior, why)
        return update
    module, _, name = by_device[device].partition(":")
    faster: Any = getattr(import_module(f"headrace.stages.trainer.fast.{module}"), name)
    if device == "cpu":
        slower = "NumPy and torch. Compiled code is faster, but needs a C compiler (gcc) when Headrace is installed"
        how = slower if compiled.kernels is None else "compiled code, NumPy and torch"
        log.info("%s: gradients are computed manually, in %s.", context.behavior, how)
        return cast("Update", faster(update))
    log.info("%s: gradient steps are captured as CUDA graphs and replayed.", context.behavior)
    uncaptured = "%s: gradient steps are not captured as CUDA graphs: %s."
    return cast(
        "Update", faster(update, CudaGraphs(context.device), lambda why: log.info(uncaptured, context.behavior, why))
    )


def why_not_manual(update: Any, design: PolicyDesign) -> str:
    """Return why a CPU can't compute an update's gradients manually; empty if it can."""
    if design.gsde is not None:
        return "its noise depends on the state (network_settings.gsde)"
    if not (design.plain if design.squashed else isinstance(update.network, ActorCritic)):
        if design.perceptron:
            return "its critic has other layers than its actor (network_settings.critic_hidden_units)"
        return "its network is more than a perceptron over vectors"
    if design.squashed and design.spec.actions.discrete_branches:
        return "some of its actions are discrete"
    return ""


def why_not_captured(context: TrainerContext) -> str:
    """Return why a GPU can't capture a behaviour's gradient steps; empty if it can."""
    network = context.settings.network_settings
    if context.replicas.size > 1:
        return "replicas exchange gradients within each step"
    if network.memory is not None:
        return "minibatches of sequences differ in their number of rows"
    if network.network is not None:
        return "a custom network may do things that a CUDA graph does not replay"
    return ""

"""Which acceleration fits a behaviour, and why."""

from __future__ import annotations

import logging

import torch

from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.actor_critic import ActorCritic
from headrace.stages.policy.network.kernels import compiled
from headrace.stages.trainer.fast.cuda_graphs import CudaGraphs
from headrace.stages.trainer.protocol import TrainerContext

log = logging.getLogger(__name__)


def manual_gradients(network: object, context: TrainerContext, design: PolicyDesign) -> tuple[bool, str]:
    """Return whether an actor-critic network's gradients can be computed manually, and the words for the log."""
    if design.gsde is not None:
        return False, "its noise depends on the state (network_settings.gsde)"
    if not isinstance(network, ActorCritic):
        return False, "its network is more than a perceptron over vectors"
    if torch.device(context.device).type != "cpu":
        return False, f"it learns on {context.device}"
    return True, in_words()


def in_words(has_kernels: bool = compiled.kernels is not None) -> str:
    """Describe manual gradients for the log, with or without compiled code."""
    if has_kernels:
        return "gradients are computed manually, in compiled code, NumPy and torch"
    return (
        "gradients are computed manually, in NumPy and torch. Compiled code is faster, but Headrace builds it only if "
        "it finds a C compiler (gcc) during installation"
    )


def capture(context: TrainerContext) -> tuple[CudaGraphs | None, str]:
    """Return the object that captures a behaviour's gradient steps on a GPU, or None; and the words for the log."""
    network = context.settings.network_settings
    if torch.device(context.device).type != "cuda":
        return None, f"it learns on {context.device}"
    if context.replicas.size > 1:
        return None, "replicas exchange gradients within each step"
    if network.memory is not None:
        return None, "minibatches of sequences differ in their number of rows"
    if network.network is not None:
        return None, "a custom network may do things that a CUDA graph does not replay"
    return CudaGraphs(context.device), "gradient steps are captured as CUDA graphs and replayed"


def log_uncaptured(behavior: str, why: str) -> None:
    """Log that gradient steps are not captured after all."""
    log.info("%s: gradient steps are not captured as CUDA graphs: %s.", behavior, why)

"""Replaces a trainer's update by one of the same interface that computes the same numbers faster."""

from __future__ import annotations

import logging
from typing import TypeVar, cast

from headrace.stages.policy.design import PolicyDesign
from headrace.stages.trainer.fast.impala import accelerated_impala
from headrace.stages.trainer.fast.ppo import accelerated_ppo
from headrace.stages.trainer.fast.sac import accelerated_sac
from headrace.stages.trainer.impala import ImpalaUpdate
from headrace.stages.trainer.ppo import PPOUpdate
from headrace.stages.trainer.protocol import TrainerContext
from headrace.stages.trainer.sac import SACUpdate

log = logging.getLogger(__name__)

Update = TypeVar("Update")


# Called by trainers through their context, so that imports point one way (docs/decisions/058).
def accelerate(update: Update, context: TrainerContext, design: PolicyDesign) -> Update:
    """Return an instance of a subclass that computes the same numbers faster; if there is none, the update itself.

    The log has one line with the choice and its reason.

    Args:
        update: an update that has not learned yet; its network is kept.
        context: the trainer's context: device, replicas and settings.
        design: the policy's design.
    """
    faster: object | None
    # Only these classes: a user's subclass may compute something else.
    if isinstance(update, PPOUpdate) and type(update) is PPOUpdate:
        faster, why = accelerated_ppo(update, context, design)
    elif isinstance(update, ImpalaUpdate) and type(update) is ImpalaUpdate:
        faster, why = accelerated_impala(update, context, design)
    elif isinstance(update, SACUpdate) and type(update) is SACUpdate:
        faster, why = accelerated_sac(update, context, design)
    else:
        faster, why = None, f"nothing is faster than {type(update).__name__}"
    if faster is None:
        log.info("%s: autograd computes the gradients: %s.", context.behavior, why)
        return update
    log.info("%s: %s.", context.behavior, why)
    return cast("Update", faster)

"""Whatever computes updates faster than the readable trainers next to this folder (imports torch).

`accelerate` takes an update as its trainer has made it, and returns one of the same interface, a subclass, that
computes the same numbers faster. Tests compare the two. `torch_settings.acceleration: none` leaves everything as it is.

- `ppo`, `impala`, `sac`: manual gradients of perceptrons on a CPU, and captured gradient steps on a GPU.
- `perceptrons`: the equations of the manual gradients, for an actor and a critic.
- `cuda_graphs`: captures a gradient step, and replays it.

docs/performance.md has each one's measured gain.
"""

from __future__ import annotations

import logging
from typing import TypeVar, cast

from headrace.stages.policy.design import PolicyDesign
from headrace.stages.trainer.protocol import TrainerContext

log = logging.getLogger(__name__)

Update = TypeVar("Update")


def accelerate(update: Update, context: TrainerContext, design: PolicyDesign) -> Update:
    """Return an update that computes the same numbers faster; if there is none, return the update itself.

    The log has one line with the choice and its reason.

    Args:
        update: an update that has not learned yet; its network is kept.
        context: the trainer's context: device, replicas and settings.
        design: the policy's design.
    """
    if not context.accelerated:
        log.info("%s: autograd computes the gradients (torch_settings.acceleration: none).", context.behavior)
        return update
    # Imported here: these modules derive from the trainers' updates, and the trainers import this package.
    from headrace.stages.trainer.fast.impala import accelerated_impala
    from headrace.stages.trainer.fast.ppo import accelerated_ppo
    from headrace.stages.trainer.fast.sac import accelerated_sac
    from headrace.stages.trainer.impala import ImpalaUpdate
    from headrace.stages.trainer.ppo import PPOUpdate
    from headrace.stages.trainer.sac import SACUpdate

    faster: object | None
    # Not for subclasses: they may compute something else.
    if isinstance(update, PPOUpdate) and type(update) is PPOUpdate:
        faster, why = accelerated_ppo(update, context, design)
    elif isinstance(update, ImpalaUpdate) and type(update) is ImpalaUpdate:
        faster, why = accelerated_impala(update, context, design)
    elif isinstance(update, SACUpdate) and type(update) is SACUpdate:
        faster, why = accelerated_sac(update, context, design)
    else:
        faster, why = None, f"there is nothing faster for {type(update).__name__}"
    if faster is None:
        log.info("%s: autograd computes the gradients: %s.", context.behavior, why)
        return update
    log.info("%s: %s.", context.behavior, why)
    return cast("Update", faster)

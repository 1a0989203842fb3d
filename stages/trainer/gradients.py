"""What a trainer says of how it finds gradients."""

from __future__ import annotations

import logging

from headrace.stages.trainer.protocol import TrainerContext

log = logging.getLogger(__name__)


def say_autograd(context: TrainerContext, why: str) -> None:
    """Say that gradients are found by autograd, where another trainer of the kind would find them by hand."""
    log.info("%s: gradients by autograd, which takes longer than by hand: %s.", context.behavior, why)

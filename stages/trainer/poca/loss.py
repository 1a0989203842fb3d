"""The loss of POCA's baseline, as a pure function of tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def baseline_loss(baselines: Tensor, old_baselines: Tensor, returns: Tensor, epsilon: float) -> Tensor:
    """Squared error that encourages no step of more than ε away from what the baseline was: as ML-Agents has it.

    Args:
        baselines: [B, S]
        old_baselines: [B, S] before the update.
        returns: [B, S] targets.
        epsilon: the clip range.

    Returns:
        The mean over rows and signals: a scalar.
    """
    clipped = old_baselines + (baselines - old_baselines).clamp(-epsilon, epsilon)
    return torch.maximum((returns - baselines).square(), (returns - clipped).square()).mean()

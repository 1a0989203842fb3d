"""The losses of proximal policy optimisation, as pure functions of tensors.

Schulman et al. (2017), "Proximal Policy Optimization Algorithms". Axis letters: B rows of a minibatch, P
columns of log-probabilities (1 for the ratio of the joint action, else one per action dimension and branch),
S reward signals.
"""

from __future__ import annotations

import torch
from torch import Tensor


def policy_loss(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, epsilon: float) -> Tensor:
    """The clipped surrogate, eq. 7, with its sign turned so that less is better.

    Args:
        log_probs: [B, P] of the actions under the policy that is trained.
        old_log_probs: [B, P] under the policy that acted.
        advantages: [B, 1] normalised.
        epsilon: how far a ratio may leave 1 and still be encouraged.

    Returns:
        The mean over rows and columns: a scalar.
    """
    ratio = torch.exp(log_probs - old_log_probs)
    clipped = ratio.clamp(1.0 - epsilon, 1.0 + epsilon)
    cost = -advantages
    return torch.maximum(ratio * cost, clipped * cost).mean()


def value_loss(values: Tensor, returns: Tensor) -> Tensor:
    """Mean squared error over rows and signals, [B, S] each: a scalar. Not clipped (docs/differences.md)."""
    return torch.nn.functional.mse_loss(values, returns)

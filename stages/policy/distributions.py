"""Log-probabilities and entropies of actions, in torch, as pure functions.

Written out instead of using `torch.distributions`: at game-agent sizes the dispatch of its checks and
broadcasts costs more than the arithmetic. What is sampled, and by which formula, is in `numpy_policy`.
"""

from __future__ import annotations

from math import e, log, pi

import torch
from torch import Tensor

_HALF_LOG_TWO_PI = 0.5 * log(2.0 * pi)
_HALF_LOG_TWO_PI_E = 0.5 * log(2.0 * pi * e)


def gaussian_log_probs(mu: Tensor, log_sigma: Tensor, actions: Tensor) -> Tensor:
    """Per dimension log N(action; mu, exp(log_sigma)): [B, C] of mu [B, C], log_sigma [C], actions [B, C]."""
    deviation = (actions - mu) * torch.exp(-log_sigma)
    return torch.addcmul(-_HALF_LOG_TWO_PI - log_sigma, deviation, deviation, value=-0.5)


def gaussian_entropy(log_sigma: Tensor) -> Tensor:
    """Entropy in nats, the mean over dimensions (as ML-Agents weighs it): a scalar of log_sigma [C]."""
    return log_sigma.mean() + _HALF_LOG_TWO_PI_E


def categorical_log_probs(logits: Tensor, choices: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of each choice, and the entropy of one branch.

    Args:
        logits: [B, choices], with `layout.MASK_PENALTY` added where a choice is forbidden.
        choices: [B, 1] index of the choice, int64.

    Returns:
        [B, 1] log-probabilities, and the entropy in nats, the mean over rows: a scalar.
    """
    log_probs = torch.log_softmax(logits, dim=1)
    entropy = (log_probs.exp() * log_probs).sum() / -len(logits)
    return log_probs.gather(1, choices), entropy

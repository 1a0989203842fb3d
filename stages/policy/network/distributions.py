"""Log-probabilities and entropies of actions, in torch, as pure functions.

Written out instead of using `torch.distributions`: at game-agent sizes the dispatch of its checks and
broadcasts costs more than the arithmetic. What actors sample, and by which formula, is in `sampling`.
"""

from __future__ import annotations

from math import e, log, pi

import torch
from torch import Tensor

from headrace.stages.policy.sampling import LOG_SIGMA_LIMITS

_LOG_TWO = log(2.0)
_HALF_LOG_TWO_PI = 0.5 * log(2.0 * pi)
_HALF_LOG_TWO_PI_E = 0.5 * log(2.0 * pi * e)


def gaussian_log_probs(mu: Tensor, log_sigma: Tensor, actions: Tensor) -> Tensor:
    """Per dimension log N(action; mu, exp(log_sigma)): [B, C] of mu [B, C], log_sigma [C], actions [B, C]."""
    deviation = (actions - mu) * torch.exp(-log_sigma)
    return torch.addcmul(-_HALF_LOG_TWO_PI - log_sigma, deviation, deviation, value=-0.5)


def gaussian_entropy(log_sigma: Tensor) -> Tensor:
    """Entropy in nats, the mean over dimensions (as ML-Agents weighs it): a scalar of log_sigma [C]."""
    return log_sigma.mean() + _HALF_LOG_TWO_PI_E


def squashed_sample(mu: Tensor, log_sigma: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Draw tanh(u) with u = μ + σ·noise, so that gradients flow into μ and σ; σ is clamped as actors clamp it.

    Haarnoja et al. (2018), "Soft Actor-Critic", appendix C, here per dimension:
    log π(tanh u) = log N(u; μ, σ) - log(1 - tanh² u).

    Args:
        mu: [B, C] means of u.
        log_sigma: [B, C] log of its standard deviations, not clamped yet.
        noise: [B, C] standard normal.

    Returns:
        [B, C] actions in [-1, 1], and [B, C] their log-probabilities, finite where an action is rounded to ±1.
    """
    log_sigma = log_sigma.clamp(*LOG_SIGMA_LIMITS)
    u = torch.addcmul(mu, log_sigma.exp(), noise)
    log_probs = torch.addcmul(-_HALF_LOG_TWO_PI - log_sigma, noise, noise, value=-0.5) - log_tanh_slope(u)
    return torch.tanh(u), log_probs


def log_tanh_slope(u: Tensor) -> Tensor:
    """log(1 - tanh² u) of any shape: the log of tanh's derivative, exact also where tanh u is ±1 in float32.

    1 - tanh² u = 4 / (e^u + e^-u)², so its log is 2·(log 2 - |u| - log(1 + e^(-2|u|))).
    """
    size = u.abs()
    return 2.0 * (_LOG_TWO - size - torch.nn.functional.softplus(-2.0 * size))


def categorical_log_probs(logits: Tensor, choices: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of each choice, and the entropy of one branch.

    Args:
        logits: [B, choices], with `design.MASK_PENALTY` added where a choice is forbidden.
        choices: [B, 1] index of the choice, int64.

    Returns:
        [B, 1] log-probabilities, and the entropy in nats, the mean over rows: a scalar.
    """
    log_probs = torch.log_softmax(logits, dim=1)
    entropy = (log_probs.exp() * log_probs).sum() / -len(logits)
    return log_probs.gather(1, choices), entropy

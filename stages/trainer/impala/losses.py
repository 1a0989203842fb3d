"""The losses of the actor–learner, as pure functions of tensors.

Espeholt et al. (2018), IMPALA, and for cloning Rolnick et al. (2019), "Experience Replay for Continual Learning"
(CLEAR). Axis letters: R rows, C continuous actions, S reward signals, H columns of action heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace.stages.policy.network.distributions import categorical_log_probs, gaussian_entropy, gaussian_log_probs


def log_probs_and_entropy(
    heads: Tensor,
    log_sigma: Tensor | None,
    continuous: Tensor,
    choices: Sequence[Tensor],
    branches: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Log-probabilities [R] of joint actions, and the mean over rows of the joint distribution's entropy: a scalar.

    Args:
        heads: [R, H] means, then the logits of each branch with the penalties of masks.
        log_sigma: [C] of the Gaussian, None without continuous actions.
        continuous: [R, C] raw actions.
        choices: per branch [R, 1].
        branches: choices of each.
    """
    parts, entropies, logits = [], [], heads
    if log_sigma is not None:
        size = len(log_sigma)
        mu, logits = heads[:, :size], heads[:, size:]
        parts.append(gaussian_log_probs(mu, log_sigma, continuous).sum(dim=1))
        entropies.append(gaussian_entropy(log_sigma) * size)
    for branch, chosen in zip(torch.split(logits, list(branches), dim=1), choices, strict=True):
        log_probs, entropy = categorical_log_probs(branch, chosen)
        parts.append(log_probs.squeeze(1))
        entropies.append(entropy)
    return _sum(parts), _sum(entropies)


def divergence(heads: Tensor, log_sigma: Tensor | None, acted: Tensor, branches: Sequence[int]) -> Tensor:
    """KL(μ ‖ π) [R] from the policy μ that acted to the policy π that learns, summed over all heads.

    Args:
        heads: [R, H] of π, with the penalties of masks.
        log_sigma: [C] of π, None without continuous actions.
        acted: [R, H + C] of μ: means, log σ, then the logits, with the same penalties.
        branches: choices of each branch.
    """
    parts, logits = [], heads
    if log_sigma is not None:
        size = len(log_sigma)
        mu, logits = heads[:, :size], heads[:, size:]
        mean, spread, acted = torch.split(acted, [size, size, acted.shape[1] - 2 * size], dim=1)
        scaled = (torch.exp(2.0 * spread) + (mean - mu).square()) * torch.exp(-2.0 * log_sigma)
        parts.append((log_sigma - spread + 0.5 * scaled - 0.5).sum(dim=1))
    sizes = list(branches)
    for ours, theirs in zip(torch.split(logits, sizes, dim=1), torch.split(acted, sizes, dim=1), strict=True):
        log_mu = torch.log_softmax(theirs, dim=1)
        parts.append((log_mu.exp() * (log_mu - torch.log_softmax(ours, dim=1))).sum(dim=1))
    return _sum(parts)


def _sum(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total

"""The losses of soft actor-critic and their parts, as pure functions of tensors.

Axis letters and masks as in `update`: B rows, S reward signals, A choices of K discrete branches, G entropy
coefficients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of values [B, ...] without padding: a scalar; 0 where all is padding."""
    if mask is None:
        return values.mean()
    rows = values.reshape(len(values), -1).mean(dim=1)
    return (rows * mask).sum() / mask.sum().clamp(min=1.0)


def q_target(rewards: Tensor, discounts: Tensor, next_values: Tensor) -> Tensor:
    """Soft Bellman backup r + γ·V(s'), [B, S] each.

    Args:
        rewards: scaled by each signal's strength.
        discounts: γ of the signal, 0 if the episode terminated and the signal ends with it. If it was only cut
            short, s' is the real next observation, and counts.
        next_values: the target network's values.
    """
    return torch.addcmul(rewards, discounts, next_values)


def taken_values(q: Tensor, choices: Sequence[Tensor]) -> Tensor:
    """Value [B, S] of the actions taken.

    Args:
        q: [B, S, A] with the continuous actions taken.
        choices: [B, 1] per branch, index among all A choices. The mean over branches is taken.
    """
    if not choices:
        return q.squeeze(2)
    index = choices[0] if len(choices) == 1 else torch.cat(tuple(choices), dim=1)
    return q.gather(2, index.unsqueeze(1).expand(-1, q.shape[1], -1)).mean(dim=2)


def expected_values(q: Tensor, probabilities: Tensor | None, branches: int) -> Tensor:
    """Value [B, S] under the policy: Σ π(a)·Q(a) over the choices of a branch, the mean over branches.

    Args:
        q: [B, S, A] with continuous actions drawn from the policy.
        probabilities: [B, A] of the discrete choices, 0 where forbidden; None without any.
        branches: K.
    """
    if probabilities is None:
        return q.squeeze(2)
    return torch.bmm(q, probabilities.unsqueeze(2)).squeeze(2) / branches


def soft_values(expected: Tensor, negentropies: Tensor, coefficients: Tensor, weights: Tensor) -> Tensor:
    """Value of a state under the policy, entropy included: E[Q(s, a)] - Σ α·E[log π], [B, S].

    The same sign of the entropy for continuous and discrete actions. V learns this number, and the policy maximises it.

    Args:
        expected: [B, S] of the smaller Q.
        negentropies: [B, G] log-probability of the continuous actions drawn, and Σ π log π of each branch.
        coefficients: α [G].
        weights: [G] 1 for continuous actions, 1 / K for each branch.
    """
    return expected - (negentropies @ (coefficients * weights)).unsqueeze(1)


def half_squared_error(values: Tensor, targets: Tensor, mask: Tensor | None) -> Tensor:
    """½·mean (values - targets)² over rows and signals, [B, S] each, targets without gradient: a scalar."""
    if mask is None:
        return 0.5 * torch.nn.functional.mse_loss(values, targets)
    return 0.5 * masked_mean((values - targets).square(), mask)


def policy_loss(soft: Tensor, mask: Tensor | None) -> Tensor:
    """The policy's loss: minus the soft value [B, S] of its actions, averaged over signals and rows."""
    return -masked_mean(soft, mask)


def coefficient_gradients(negentropies: Tensor, targets: Tensor, mask: Tensor | None) -> Tensor:
    """Gradients [G] with respect to log α of the loss Σ log α·(H - H_target): α falls if entropy is above its target.

    The loss is eq. 18 of "Algorithms and Applications", but with log α in place of α, as in all common implementations:
    a step then does not depend on the size of α.

    Args:
        negentropies: -H as in `soft_values`, [B, G].
        targets: H_target, [G] or [B, G].
        mask: [B] or None.
    """
    excess = -(negentropies.detach() + targets)
    return excess.mean(dim=0) if mask is None else mask @ excess / mask.sum().clamp(min=1.0)

"""What the probability ratios of a rollout say: how far an update has moved the policy, and what late rows weigh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.stages.trainer.protocol import Replicas

# How far an update has moved the policy: measured from the probability ratios of the minibatches of an epoch. The
# ratios are those of the loss, r = π / π_old, each measured before its minibatch's gradient step. Nothing is computed
# for it minibatch by minibatch: their logarithms are kept, and measured together when an epoch is over.

TOLERANCE = 1.5
"""The epochs of an update end when approximate KL is above this many times `target_kl`, as in Stable-Baselines3."""


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """What the minibatches of one epoch show."""

    approximate_kl: float
    """Mean of r - 1 - log r over actions: Schulman's estimator k3 of KL(π_old, π), never negative."""
    clip_fraction: float
    """Share of the ratios that are further than ε from 1."""
    least_ratio: float
    greatest_ratio: float

    def named(self) -> dict[str, float]:
        """By the names of the statistics."""
        return {
            "Approximate KL": self.approximate_kl,
            "Clip Fraction": self.clip_fraction,
            "Ratio Min": self.least_ratio,
            "Ratio Max": self.greatest_ratio,
        }

    def beyond(self, target_kl: float | None) -> bool:
        """Return True if the epochs should end here."""
        return target_kl is not None and self.approximate_kl > TOLERANCE * target_kl


def measured(log_ratios: Sequence[Tensor], shares: Sequence[float], epsilon: float, replicas: Replicas) -> Tensor:
    """Measure an epoch, on the device: [replicas, 4] in the order of `PolicyChange`, still to be put together.

    Args:
        log_ratios: [R, P] of each minibatch, without gradient; R may differ.
        shares: the weights of the minibatches' means, where other replicas have other rows of the same ones.
        epsilon: the clip range.
        replicas: those that have the other rows.
    """
    rows = torch.cat(list(log_ratios))
    sizes = [len(each) for each in log_ratios]
    each_row = np.asarray(shares) / (len(sizes) * np.asarray(sizes))
    weights = torch.from_numpy(np.repeat(each_row, sizes).astype(np.float32)).to(rows)
    beyond = torch.expm1(rows)
    joint, beyond_joint = rows, beyond
    if rows.shape[1] > 1:
        joint = rows.sum(dim=1, keepdim=True)
        beyond_joint = torch.expm1(joint)
    kl = weights @ (beyond_joint - joint)[:, 0]
    clipped = weights @ (beyond.abs() > epsilon).to(rows).mean(dim=1)
    return replicas.of_each(torch.stack([kl, clipped, *(1.0 + end for end in torch.aminmax(beyond))]))


def change_of(found: Tensor) -> PolicyChange:
    """Put what was `measured` by each replica together."""
    kl, clipped, least, greatest = found.cpu().numpy().astype(np.float64).T
    return PolicyChange(float(kl.sum()), float(clipped.sum()), float(least.min()), float(greatest.max()))


# Decoupled PPO: the policy that the clip is centred on, told apart from the policy that acted. Hilton, Cobbe &
# Schulman (2021), "Batch size-invariance for policy optimization". PPO's old policy has two purposes: the clip around
# it bounds the size of an update, which takes the policy before the update; and the ratio to it corrects for actions
# that another policy drew, which takes the one that drew them. The two differ where rows come late, and where the
# normaliser has moved since. With π_now the policy before the update and r = π / π_now, an advantage A counts as
# min(π_now / π_acted, 1) · min(r A, clip(r, 1 - ε, 1 + ε) A). The paper truncates the weight at 100; at 1 no few rows
# outweigh the others. Rows of π_now itself weigh 1: plain PPO. Axis letters: N rows; P columns of log-probabilities.

Floats = NDArray[np.float32]


def importance_weights(current: Floats, acted: Floats) -> Floats:
    """min(π_now / π_acted, 1) [N, P], of log-probabilities [N, P] under the current policy and the one that acted."""
    weights: Floats = np.exp(np.minimum(current - acted, 0.0))
    return weights

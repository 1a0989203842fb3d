"""Decoupled PPO: the policy that the clip is centred on, told apart from the policy that acted.

Hilton, Cobbe & Schulman (2021), "Batch size-invariance for policy optimization". PPO's old policy has two purposes: the
clip around it bounds the size of an update, which takes the policy before the update; and the ratio to it corrects for
actions that another policy drew, which takes the one that drew them. The two differ where rows come late, and where the
normaliser has moved since. With π_now the policy before the update and r = π / π_now, an advantage A counts as

    min(π_now / π_acted, 1) · min(r A, clip(r, 1 - ε, 1 + ε) A).

The paper truncates the weight at 100; at 1 no few rows outweigh the others. Rows of π_now itself weigh 1: plain PPO.
Axis letters: N rows; P columns of log-probabilities.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.stages.trainer.on_policy.minibatches import Minibatch
from headrace.stages.trainer.on_policy.update import OnPolicyUpdate

Floats = NDArray[np.float32]


def log_probs_of(update: OnPolicyUpdate[Any], heads: Tensor, rows: Minibatch) -> Floats:
    """Log-probabilities [N, P] of the actions of N rows, given the actor's heads [N, H], without gradients."""
    with torch.no_grad():
        found: Floats = update.log_probs_and_entropy(heads, rows)[0].cpu().numpy()
    return found


def current_log_probs(update: OnPolicyUpdate[Any], minibatches: Iterable[Minibatch]) -> Floats:
    """Log-probabilities [N, P] of the minibatches' actions under the policy as it is now, without gradients.

    Replicas take turns at the minibatches.
    """
    found, replicas = [], update.replicas
    with torch.no_grad():
        for number, batch in enumerate(minibatches):
            if number % replicas.size != replicas.rank:
                found.append(torch.zeros_like(batch.old_log_probs))
                continue
            heads = update.heads(batch.inputs)
            if batch.real is not None:
                heads = heads.index_select(0, batch.real)
            found.append(update.log_probs_and_entropy(heads, batch)[0])
        all_found = torch.cat(found)
        replicas.add_up(all_found)
        log_probs: Floats = all_found.cpu().numpy()
    return log_probs


def importance_weights(current: Floats, acted: Floats) -> Floats:
    """min(π_now / π_acted, 1) [N, P], of log-probabilities [N, P] under the current policy and the one that acted."""
    weights: Floats = np.exp(np.minimum(current - acted, 0.0))
    return weights

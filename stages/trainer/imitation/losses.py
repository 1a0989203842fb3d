"""The losses of imitation, as pure functions of action heads and a batch of the expert's steps.

Heads are those of `ActorNetwork`: means, log σ if the design is squashed, then the logits of each branch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.distributions import categorical_log_probs, gaussian_log_probs
from headrace.stages.trainer.imitation.examples import ImitationBatch


def cloning_loss(heads: Tensor, batch: ImitationBatch, design: PolicyDesign) -> Tensor:
    """Squared error of the mean action, and cross-entropy of the choices: a scalar.

    Of the continuous actions the mean over dimensions, of the choices that over branches; the two are added.

    ML-Agents uses the squared error of a drawn action. In expectation that is the mean's error plus σ², so it also
    pulls σ towards 0, without end where cloning does not fade out: that ends exploration, and contradicts trainers that
    learn σ for its entropy. The mean's error has the same gradient for the means, without the noise of drawing, and
    leaves σ to the trainer.

    Args:
        heads: [B, H] of the batch's inputs.
        batch: the expert's steps.
        design: of the policy with these heads.
    """
    continuous = design.spec.actions.continuous_size
    terms = []
    if continuous:
        means = heads[:, :continuous]
        error = (torch.tanh(means) if design.squashed else means) - batch.continuous
        terms.append(error.square().mean(dim=1))
    log_probs = _choice_log_probs(heads, batch, design)
    if log_probs:
        terms.append(-torch.cat(log_probs, dim=1).mean(dim=1))
    return batch.mean(terms[0] if len(terms) == 1 else terms[0] + terms[1])


def log_likelihood(heads: Tensor, log_sigma: Tensor | None, batch: ImitationBatch, design: PolicyDesign) -> Tensor:
    """Log-probability [B] that a policy with a plain Gaussian acts as the expert did, all actions together.

    Args:
        heads: [B, H] of the batch's inputs.
        log_sigma: [C] of the continuous actions; None without any.
        batch: the expert's steps.
        design: of the policy with these heads; not squashed.
    """
    columns = _choice_log_probs(heads, batch, design)
    if log_sigma is not None:
        columns.append(gaussian_log_probs(heads[:, : len(log_sigma)], log_sigma, batch.continuous))
    return torch.cat(columns, dim=1).sum(dim=1)


def _choice_log_probs(heads: Tensor, batch: ImitationBatch, design: PolicyDesign) -> list[Tensor]:
    """Log-probability [B, 1] of the expert's choice, for each branch."""
    branches = split_logits(heads, batch, design)
    return [
        categorical_log_probs(branch, batch.choices[:, index : index + 1])[0] for index, branch in enumerate(branches)
    ]


def split_logits(heads: Tensor, batch: ImitationBatch, design: PolicyDesign) -> tuple[Tensor, ...]:
    """Logits [B, choices] of each branch; those of forbidden choices have probability 0."""
    actions = design.spec.actions
    if not actions.discrete_branches:
        return ()
    logits = heads[:, design.head_size - actions.mask_size :]
    if batch.penalties is not None:
        logits = logits + batch.penalties
    return torch.split(logits, list(actions.discrete_branches), dim=1)

"""The actor–learner's gradients, by autograd or by hand; network and actions are in `on_policy/by_hand.py`.

Axis letters: N rows, of which those from F on are replayed; K trajectories; C continuous actions, H heads, S signals.
By hand: with the advantages w and targets G of V-trace, which are constants, m and v' what was recorded of replayed
rows, and the weights c of the losses, which here include the division by their rows, the loss is

    L = -c₀ Σ w·log π + c₁ Σ (v - G)²/2 - c₂·N·entropy + c₃ Σ_replayed KL(m ‖ π) + c₄ Σ_replayed (v - v')²

so that g = ∂L/∂log π = -c₀·w and ∂L/∂v = c₁·(v - G) + 2·c₄·(v - v'). The entropy is that of the joint distribution: of
the Gaussian the sum over dimensions. Of the divergence, with means μ and m, log-spreads log σ and s, logits l and q,

    ∂KL/∂μ = (μ - m)/σ²     ∂KL/∂log σ = 1 - (e^(2s) + (m - μ)²)/σ²     ∂KL/∂l = softmax l - softmax q.

Observations after a trajectory's last row have values, but no part in the loss: their gradients are zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import e, log, pi
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.queues.specs import ActionSpec
from headrace.stages.policy.network.layers import categorical_log_probs, gaussian_scores
from headrace.stages.policy.network.protocol import ActorCriticNetwork, Perceptrons
from headrace.stages.trainer.impala.unrolls import Recorded, Unrolls
from headrace.stages.trainer.on_policy.by_hand import ActionLikelihood, Numbers, PerceptronsByHand

_HALF_LOG_TWO_PI_E = 0.5 * log(2.0 * pi * e)


class ImpalaGradients(Protocol):
    """Computes the gradients of `ImpalaUpdate`'s losses, in two passes, as V-trace needs the first one's results."""

    def forward(self, unrolls: Unrolls) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return heads [N, H] with the penalties of masks, values [N + K, S], log π [N] and the entropy."""
        ...

    def backward(
        self,
        unrolls: Unrolls,
        advantages: NDArray[np.float64],
        targets: NDArray[np.float64],
        weights: Sequence[float],
        share: float,
        total: Tensor,
    ) -> None:
        """Set the gradients of `share` times the weighted losses of the last `forward`.

        Args:
            unrolls: as in `forward`.
            advantages: [N] weights of log π.
            targets: [N, S] of the values.
            weights: of the losses other than the total, divided by the number of their rows.
            share: a factor.
            total: the sum of the weighted losses.
        """
        ...


class ImpalaAutograd:
    """By autograd, for any network.

    Args:
        network: runs forward; its gradients are set.
        branches: choices of each discrete action.
    """

    def __init__(self, network: ActorCriticNetwork, branches: Sequence[int]) -> None:
        self._network, self._branches = network, branches

    def outputs(self, unrolls: Unrolls) -> tuple[Tensor, Tensor]:
        """Heads [N, H] with the penalties of masks, and values [N + K, S]."""
        heads, values = self._network(unrolls.inputs)
        n = len(unrolls)
        if unrolls.places is None:
            heads = heads[:n]
        else:
            heads, values = heads.index_select(0, unrolls.places[:n]), values.index_select(0, unrolls.places)
        return (heads if unrolls.penalties is None else heads + unrolls.penalties), values

    def forward(self, unrolls: Unrolls) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """See `ImpalaGradients`."""
        heads, values = self.outputs(unrolls)
        of_actions = unrolls.continuous, unrolls.choices, self._branches, self._network.squashed
        return heads, values, *log_probs_and_entropy(heads, self._network.log_sigma, *of_actions)

    def backward(self, unrolls: Unrolls, *of_losses: Any) -> None:
        """See `ImpalaGradients`; the graph of the total holds everything else."""
        *_, share, total = of_losses
        self.descend(share, total)

    def descend(self, share: float, total: Tensor) -> None:
        """Set the gradients of `share` times the total."""
        self._network.gradients.zero_()
        torch.autograd.backward(total if share == 1.0 else total * share)


def log_probs_and_entropy(
    heads: Tensor,
    log_sigma: Tensor | None,
    continuous: Tensor,
    choices: Sequence[Tensor],
    branches: Sequence[int],
    squashed: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities [R] of joint actions, and the mean over rows of the joint distribution's entropy: a scalar.

    Args:
        heads: [R, H] means, then the logits of each branch with the penalties of masks.
        log_sigma: [C] of the Gaussian; None if it follows the means in the heads.
        continuous: [R, C] raw actions.
        choices: per branch [R, 1].
        branches: choices of each.
        squashed: whether continuous actions are the tanh of the Gaussian.
    """
    parts, entropies, logits = [], [], heads
    if size := continuous.shape[1]:
        log_probs, entropy, logits = gaussian_scores(heads, log_sigma, continuous, squashed)
        parts.append(log_probs.sum(dim=1))
        entropies.append(entropy * size)
    for branch, chosen in zip(torch.split(logits, list(branches), dim=1), choices, strict=True):
        log_probs, entropy = categorical_log_probs(branch, chosen)
        parts.append(log_probs.squeeze(1))
        entropies.append(entropy)
    return reduce(torch.add, parts), reduce(torch.add, entropies)


class ImpalaByHand:
    """The outputs of `ImpalaUpdate`'s network, and the gradients of its losses: its `gradients`.

    Args:
        network: two perceptrons, or one with both heads, on the CPU.
        actions: the behaviour's actions.
        rows: the usual number of rows of a batch.
    """

    def __init__(self, network: Perceptrons, actions: ActionSpec, rows: int) -> None:
        self._perceptron = PerceptronsByHand(network, rows)
        self._likelihood = ActionLikelihood(network, actions)
        self._continuous = actions.continuous_size
        self._branches = list(actions.discrete_branches)
        self._heads = np.empty((0, 0), np.float32)
        """[H, N] with the penalties of masks."""
        self._log_sigma = self._of_log_sigma = None
        if "log_sigma" in network.parameters:
            self._log_sigma = network.parameters["log_sigma"].detach().numpy()
            self._of_log_sigma = network.named_views(network.gradients)["log_sigma"].numpy()

    def forward(self, unrolls: Unrolls) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return heads [N, H] with the penalties of masks, values [N + K, S], log π [N] and the entropy; no graph."""
        network, n = self._perceptron, len(unrolls)
        with np.errstate(all="ignore"):  # what is not finite is looked for in the losses
            network.forward(unrolls.inputs.vectors)
            self._heads = np.ascontiguousarray(network.heads[:, :n])
            if unrolls.penalties is not None:
                self._heads += unrolls.penalties.numpy().T
            log_probs, entropy = self._likelihood.forward(
                self._heads,
                unrolls.continuous.numpy().T,
                [choices.numpy()[:, 0] for choices in unrolls.choices],
                self._heads[:0],
            )
        if self._log_sigma is not None:
            entropy += (self._continuous - 1) * (float(self._log_sigma.mean()) + _HALF_LOG_TWO_PI_E)
        found = self._heads.T, network.values.T, np.add.reduce(log_probs, axis=0), np.array(entropy, log_probs.dtype)
        heads, values, joint, of_all = (torch.from_numpy(each) for each in found)
        return heads, values, joint, of_all

    def backward(
        self,
        unrolls: Unrolls,
        advantages: NDArray[np.float64],
        targets: NDArray[np.float64],
        weights: Sequence[float],
        share: float,
        total: Tensor,
    ) -> None:
        """Write the gradients; see `ImpalaGradients`. Of the equations above, advantages are w and targets G."""
        network, n, kind = self._perceptron, len(unrolls), self._heads.dtype
        policy, baseline, of_entropy, policy_cloning, value_cloning = (share * weight for weight in weights)
        of_heads, errors = np.empty_like(self._heads), network.values[:, :n] - targets.T
        with np.errstate(all="ignore"):
            of_log_probs = (-policy * advantages).astype(kind)[None]
            self._likelihood.backward(of_log_probs, -of_entropy * n, of_heads)
            if self._of_log_sigma is not None:  # in `ActionLikelihood` it is the mean over dimensions
                self._of_log_sigma -= of_entropy * n * (1.0 - 1.0 / self._continuous)
            errors *= baseline
            if (recorded := unrolls.recorded) is not None:
                replayed = slice(unrolls.fresh, n)
                difference = network.values[:, replayed] - recorded.values.numpy().T
                errors[:, replayed] += 2.0 * value_cloning * difference
                self._clone(recorded, of_heads[:, replayed], self._heads[:, replayed], policy_cloning)
            network.of_heads[:, :n], network.of_heads[:, n:] = of_heads, 0.0
            network.of_values[:, :n], network.of_values[:, n:] = errors, 0.0
            network.backward()

    def _clone(self, recorded: Recorded, of_heads: Numbers, heads: Numbers, weight: float) -> None:
        if recorded.heads is None:
            return
        acted, size = recorded.heads.numpy().T, self._continuous
        if self._log_sigma is not None and self._of_log_sigma is not None:
            mean, spread, acted = acted[:size], acted[size : 2 * size], acted[2 * size :]
            precision = np.exp(-2.0 * self._log_sigma)[:, None]
            away = heads[:size] - mean
            of_heads[:size] += weight * away * precision
            self._of_log_sigma += weight * np.add.reduce(1.0 - (np.exp(2.0 * spread) + away * away) * precision, axis=1)
        first = 0
        for width in self._branches:
            ours, theirs = heads[size + first : size + first + width], acted[first : first + width]
            of_heads[size + first : size + first + width] += weight * (_softmax(ours) - _softmax(theirs))
            first += width


def _softmax(logits: Numbers) -> Numbers:
    """The softmax of each column [H, N]."""
    p: Numbers = np.exp(logits - np.maximum.reduce(logits, axis=0))
    p /= np.add.reduce(p, axis=0)
    return p

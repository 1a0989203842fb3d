"""IMPALA's update with manual gradients.

Let w and G be V-trace's advantages and targets (constants), m and v' the head outputs and values recorded for replayed
rows, and c the loss weights, here divided by the number of rows. The loss is

    L = -c₀ Σ w·log π + c₁ Σ (v - G)²/2 - c₂·N·entropy + c₃ Σ_replayed KL(m ‖ π) + c₄ Σ_replayed (v - v')²

so that g = ∂L/∂log π = -c₀·w and ∂L/∂v = c₁·(v - G) + 2·c₄·(v - v'). The entropy is that of the joint distribution; for
the Gaussian, the sum over dimensions. For the divergence, with means μ and m, log standard deviations log σ and s, and
logits l and q,

    ∂KL/∂μ = (μ - m)/σ²     ∂KL/∂log σ = 1 - (e^(2s) + (m - μ)²)/σ²     ∂KL/∂l = softmax l - softmax q.

The values of final observations don't contribute to the loss, so their gradients are zero. The equations of network and
actions are in `perceptrons`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import e, log, pi
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.stages.policy.network.actor_critic import ActorCritic
from headrace.stages.trainer.fast.perceptrons import ActionLikelihood, ManualPerceptrons, Numbers
from headrace.stages.trainer.impala import ImpalaUpdate, Unrolls

_HALF_LOG_TWO_PI_E = 0.5 * log(2.0 * pi * e)


class ManualImpalaUpdate(ImpalaUpdate):
    """Computes the network's outputs and the loss gradients without autograd, except for pre-training of the critic.

    Args:
        update: the update that this one replaces.
    """

    def __init__(self, update: ImpalaUpdate) -> None:
        super().__init__(update.network, update.spec, update.settings, update.gammas, update.replicas)
        network, actions, h = cast("ActorCritic", update.network), update.spec.actions, update.settings
        self._perceptrons = ManualPerceptrons(network, h.batch_size * h.unroll_length)
        self._likelihood = ActionLikelihood(network, actions)
        self._continuous = actions.continuous_size
        self._heads = np.empty((0, 0), np.float32)
        """[H, N] head outputs, with mask penalties added."""

    def forward(self, unrolls: Unrolls) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """See `ImpalaUpdate.forward`; the results have no autograd graph."""
        network, n = self._perceptrons, len(unrolls.acted)
        with np.errstate(all="ignore"):  # the update detects non-finite values in the losses
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
        if (log_sigma := self._likelihood.log_sigma) is not None:
            entropy += (self._continuous - 1) * (float(log_sigma.mean()) + _HALF_LOG_TWO_PI_E)
        arrays = self._heads.T, network.values.T, np.add.reduce(log_probs, axis=0), np.array(entropy, log_probs.dtype)
        heads, values, joint, of_all = (torch.from_numpy(array) for array in arrays)
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
        """Write the gradients; see `ImpalaUpdate.backward`. In the equations, advantages are w and targets are G."""
        network, n, kind = self._perceptrons, len(unrolls.acted), self._heads.dtype
        policy, baseline, of_entropy, policy_cloning, value_cloning = (share * weight for weight in weights)
        of_heads, errors = np.empty_like(self._heads), network.values[:, :n] - targets.T
        with np.errstate(all="ignore"):
            of_log_probs = (-policy * advantages).astype(kind)[None]
            self._likelihood.backward(of_log_probs, -of_entropy * n, of_heads)
            if (of_log_sigma := self._likelihood.of_log_sigma) is not None:  # it takes the mean over dimensions
                of_log_sigma -= of_entropy * n * (1.0 - 1.0 / self._continuous)
            errors *= baseline
            if unrolls.recorded_values is not None:
                replayed = slice(unrolls.fresh, n)
                difference = network.values[:, replayed] - unrolls.recorded_values.numpy().T
                errors[:, replayed] += 2.0 * value_cloning * difference
                if unrolls.recorded_heads is not None:
                    acted = unrolls.recorded_heads.numpy().T
                    self._clone(acted, of_heads[:, replayed], self._heads[:, replayed], policy_cloning)
            network.of_heads[:, :n], network.of_heads[:, n:] = of_heads, 0.0
            network.of_values[:, :n], network.of_values[:, n:] = errors, 0.0
            network.backward()

    def _clone(self, acted: Numbers, of_heads: Numbers, heads: Numbers, weight: float) -> None:
        size = self._continuous
        log_sigma, of_log_sigma = self._likelihood.log_sigma, self._likelihood.of_log_sigma
        if log_sigma is not None and of_log_sigma is not None:
            mean, spread, acted = acted[:size], acted[size : 2 * size], acted[size:]
            precision = np.exp(-2.0 * log_sigma)[:, None]
            away = heads[:size] - mean
            of_heads[:size] += weight * away * precision
            of_log_sigma += weight * np.add.reduce(1.0 - (np.exp(2.0 * spread) + away * away) * precision, axis=1)
        for branch in self._likelihood.branches:
            of_heads[branch] += weight * (_softmax(heads[branch]) - _softmax(acted[branch]))


def _softmax(logits: Numbers) -> Numbers:
    """Return the softmax over H of each column of logits [H, N]."""
    p: Numbers = np.exp(logits - np.maximum.reduce(logits, axis=0))
    p /= np.add.reduce(p, axis=0)
    return p

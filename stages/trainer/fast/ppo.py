"""PPO's update, accelerated: manual gradients on a CPU, and captured gradient steps on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from headrace.stages.policy.network.actor_critic import ActorCritic
from headrace.stages.policy.network.layers import to_device
from headrace.stages.trainer.fast.cuda_graphs import CapturedStep, CudaGraphs, copied
from headrace.stages.trainer.fast.perceptrons import ActionLikelihood, ManualPerceptrons, Numbers, mean_of
from headrace.stages.trainer.on_policy.rollout import Minibatch, MinibatchArrays, PackedColumns
from headrace.stages.trainer.on_policy.trainer import Coefficients
from headrace.stages.trainer.ppo import GradientStep, PPOUpdate


class ManualPPOUpdate(PPOUpdate):
    """Computes losses and their gradients without autograd, for two perceptrons, or one with both heads.

    The equations are in `perceptrons`.

    Args:
        update: the update that this one replaces.
        use_kernels: whether compiled code may be used if it is installed.
    """

    network: ActorCritic

    def __init__(self, update: PPOUpdate, use_kernels: bool = True) -> None:
        super().__init__(update.network, update.spec, update.settings, update.replicas, update.anchor)
        network, actions = cast("ActorCritic", update.network), update.spec.actions
        self._perceptrons = ManualPerceptrons(network, update.settings.batch_rows, use_kernels)
        self._likelihood = ActionLikelihood(network, actions, use_kernels)
        self._joint = not update.settings.ratio_per_dimension
        self._divergence: ManualDivergence | None = None
        if update.anchor is not None:
            self._divergence = ManualDivergence(self._likelihood, update.anchor.coefficient)

    def find_gradients(self, batch: Minibatch, coefficients: Coefficients, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Write the gradients; see `PPOUpdate.find_gradients`."""
        network, rows, share = self._perceptrons, batch.arrays, batch.share
        with np.errstate(all="ignore"):  # the update checks for NaN and infinity at its end
            network.forward(batch.inputs.vectors)
            if self._likelihood.compiled:
                numbers = coefficients.epsilon, coefficients.beta, share
                surrogate = self._likelihood.clipped(network.heads, rows, numbers, network.of_heads, self._joint)
            else:
                surrogate = self._surrogate(network.heads, rows, coefficients, share, network.of_heads)
            policy, entropy, log_ratios = surrogate
            losses = [policy, 0.0, entropy]
            if self._divergence is not None:
                losses.append(self._divergence(network.heads, rows, share, network.of_heads))
                losses[0] += self._divergence.coefficient * losses[3]
            # The squared error's gradient w.r.t. the values.
            error = np.subtract(network.values, rows.returns, out=network.of_values)
            losses[1] = float(np.vdot(error, error)) / error.size
            error *= 2.0 * (self.settings.value_coefficient * share) / error.size
            network.backward()
        return torch.from_numpy(np.array(losses, log_ratios.dtype)), torch.from_numpy(log_ratios.T)

    def _surrogate(
        self, heads: Numbers, rows: MinibatchArrays, coefficients: Coefficients, share: float, of_heads: Numbers
    ) -> tuple[float, float, Numbers]:
        """Write the gradient of head outputs [H, R] to `of_heads`, and also the gradient of log σ.

        Returns:
            The policy loss, the entropy, and the log-ratios [P, R].
        """
        actions, epsilon = self._likelihood, coefficients.epsilon
        log_ratios, entropy = actions.forward(heads, rows.continuous, rows.choices, rows.penalties)
        if self._joint and len(log_ratios) > 1:
            log_ratios = np.add.reduce(log_ratios, axis=0, keepdims=True)
        log_ratios -= rows.old_log_probs
        # The clipped surrogate, and its gradient w.r.t. the log-ratios: 0 where clipped.
        ratios, number = np.exp(log_ratios), log_ratios.dtype.type
        # `np.clip` takes twice as long for a minibatch.
        clipped = np.minimum(np.maximum(ratios, number(1.0 - epsilon)), number(1.0 + epsilon))
        ratios *= rows.advantages
        clipped *= rows.advantages
        policy = -mean_of(np.minimum(ratios, clipped))
        ratios *= ratios <= clipped
        ratios *= -1.0 / ratios.size
        if share != 1.0:
            ratios *= share
        actions.backward(ratios, -coefficients.beta * share, of_heads)
        return policy, entropy, log_ratios


class ManualDivergence:
    """Computes `anchor.divergence` and its gradients, for arrays with rows last.

    With π = (μ, σ, p) and the anchor (m, s, q), the gradients of a row are

        Gaussian      ∂/∂μ = (μ - m) / s²     ∂/∂log σ = σ² / s² - 1
        categorical   ∂/∂logits = p·(log p - log q - k), where k = Σ p·(log p - log q).

    Args:
        likelihood: has the standard deviations, to whose gradient the divergence's is added.
        coefficient: a factor on the gradients.
    """

    def __init__(self, likelihood: ActionLikelihood, coefficient: float) -> None:
        self._likelihood, self.coefficient = likelihood, coefficient

    def __call__(self, heads: Numbers, rows: MinibatchArrays, share: float, of_heads: Numbers) -> float:
        """Return the divergence; add its gradients to `of_heads` [H, R] and to the gradient of log σ."""
        assert rows.anchor is not None, "there is one"
        anchor, actions, total, factor = rows.anchor, self._likelihood, 0.0, self.coefficient * share / heads.shape[1]
        c, of_log_sigma = 0, actions.of_log_sigma
        if actions.log_sigma is not None and of_log_sigma is not None:
            c = len(actions.log_sigma)
            log_sigma, gap = actions.log_sigma[:, None], heads[:c] - anchor[:c]
            precision = np.exp(-2.0 * anchor[c : 2 * c])
            ratio = np.exp(2.0 * log_sigma) * precision
            total += float((anchor[c : 2 * c] - log_sigma + 0.5 * (ratio + gap * gap * precision - 1.0)).sum())
            of_heads[:c] += factor * gap * precision
            of_log_sigma += factor * (ratio - 1.0).sum(axis=1)
        for branch in actions.branches:
            logits = heads[branch]
            if len(rows.penalties):
                logits = logits + rows.penalties[branch.start - c : branch.stop - c]
            log_p = logits - np.maximum.reduce(logits, axis=0)
            log_p -= np.log(np.add.reduce(np.exp(log_p), axis=0))
            p = np.exp(log_p)
            log_p -= anchor[branch.start + c : branch.stop + c]
            of_rows = np.add.reduce(p * log_p, axis=0)
            total += float(of_rows.sum())
            of_heads[branch] += factor * p * (log_p - of_rows)
        return total / float(heads.shape[1])


class _PPOStepInputs(NamedTuple):
    """Everything that changes from one gradient step to the next."""

    block: PackedColumns
    others: tuple[Tensor, ...]
    """The minibatch's images and sets."""
    scheduled: Tensor
    """[2 + k] the learning rate, the clip range, and the losses' weights."""


class CapturedPPOUpdate(PPOUpdate):
    """Takes gradient steps as CUDA graphs, for a network without memory.

    Each graph is one step; shuffles, `target_kl` and checks stay outside it.

    Args:
        update: the update that this one replaces.
        graphs: captures the steps.
        tell: called once with the reason if steps are not captured.
    """

    def __init__(self, update: PPOUpdate, graphs: CudaGraphs, tell: Callable[[str], None]) -> None:
        super().__init__(update.network, update.spec, update.settings, update.replicas, update.anchor)
        self._captured = CapturedStep(self._uncaptured, graphs, tell)
        self._weights = self._scheduled = update.network.values[:0]

    def step(self, minibatch: Minibatch, coefficients: Coefficients, weights: Tensor, measure: bool) -> GradientStep:
        """Take a gradient step, by replaying its graph if the graph has been captured; see `PPOUpdate.step`."""
        assert minibatch.block is not None, "there is no memory"
        if weights is not self._weights:  # a new update: copy its scheduled hyperparameters to the device
            others = torch.tensor([coefficients.learning_rate, coefficients.epsilon])
            self._weights, self._scheduled = weights, torch.cat([to_device(others, weights.device), weights])
        taken = self._captured(_PPOStepInputs(minibatch.block, minibatch.inputs.others, self._scheduled))
        self.adam.steps += 1
        return copied(taken) if measure else GradientStep(taken.losses.clone(), None, None)

    def _uncaptured(self, inputs: _PPOStepInputs) -> GradientStep:
        rate, epsilon, weights = inputs.scheduled[0], inputs.scheduled[1], inputs.scheduled[2:]
        minibatch = Minibatch.of_block(inputs.block, inputs.others)
        # Torch accepts a zero-dimensional tensor wherever it accepts a number, but its type hints do not show that.
        coefficients = Coefficients(cast("float", rate), 0.0, cast("float", epsilon))
        return super().step(minibatch, coefficients, weights, measure=True)

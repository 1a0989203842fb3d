"""PPO's gradients without autograd, and its gradient steps as CUDA graphs; both are put into a `PPOUpdate`.

The derivation is in `stages/trainer/on_policy/by_hand.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from headrace.queues.specs import ActionSpec
from headrace.stages.policy.network.protocol import Perceptrons
from headrace.stages.policy.network.transfers import to_device
from headrace.stages.trainer.gradients import CapturedStep, Graphs, copied
from headrace.stages.trainer.on_policy.by_hand import ActionLikelihood, Numbers, PerceptronsByHand
from headrace.stages.trainer.on_policy.minibatches import Minibatch, MinibatchArrays, PackedColumns
from headrace.stages.trainer.on_policy.update import (
    VALUE_COEFFICIENT,
    Coefficients,
    OnPolicyUpdate,
    PPOUpdate,
    clipped_by_hand,
    value_loss_by_hand,
)


class PPOByHand:
    """The losses of `PPOUpdate` and their gradients, without autograd: its `find_gradients`.

    Args:
        update: keeps the ratios.
        network: two perceptrons, or one with both heads.
        actions: the behaviour's.
    """

    def __init__(self, update: PPOUpdate, network: Perceptrons, actions: ActionSpec) -> None:
        self._update, h = update, update.settings
        self._perceptron = PerceptronsByHand(network, h.batch_size)
        self._surrogate = SurrogateByHand(network, actions, h.ratio_per_dimension)

    def __call__(self, batch: Minibatch, coefficients: Coefficients, weights: Tensor) -> Tensor:
        """Write the gradients; returns the losses [3]."""
        network, rows = self._perceptron, batch.arrays
        with np.errstate(all="ignore"):  # what is not finite is looked for when the update is over
            network.forward(batch.inputs.vectors)
            policy, entropy, log_ratios = self._surrogate(
                network.heads, rows, coefficients, batch.share, network.of_heads
            )
            weight = VALUE_COEFFICIENT * batch.share
            value = value_loss_by_hand(network.values, rows.returns, weight, network.of_values)
            network.backward()
        self._update.ratios = torch.from_numpy(log_ratios.T)
        return torch.from_numpy(np.array([policy, value, entropy], log_ratios.dtype))


class ActorByHand:
    """The policy loss and the entropy of `PPOByHand`, of an actor whose critic learns elsewhere; arguments as there."""

    def __init__(self, update: OnPolicyUpdate[Any], actor: Perceptrons, actions: ActionSpec) -> None:
        self._update, h = update, update.settings
        self._perceptron = PerceptronsByHand(actor, h.batch_size)
        self._surrogate = SurrogateByHand(actor, actions, h.ratio_per_dimension)

    def __call__(self, batch: Minibatch, coefficients: Coefficients) -> Tensor:
        """Write the actor's gradients; returns policy loss and entropy [2]."""
        network = self._perceptron
        with np.errstate(all="ignore"):
            network.forward(batch.inputs.vectors)
            policy, entropy, log_ratios = self._surrogate(
                network.heads, batch.arrays, coefficients, batch.share, network.of_heads
            )
            network.backward()
        self._update.ratios = torch.from_numpy(log_ratios.T)
        return torch.from_numpy(np.array([policy, entropy], log_ratios.dtype))


class SurrogateByHand:
    """The clipped policy loss, and the entropy bonus.

    Args:
        network: has the standard deviations.
        actions: the behaviour's.
        ratio_per_dimension: whether ratios are those of each action dimension and branch, or of the joint action.
    """

    def __init__(self, network: Perceptrons, actions: ActionSpec, ratio_per_dimension: bool) -> None:
        self._likelihood = ActionLikelihood(network, actions)
        self._joint = not ratio_per_dimension

    def __call__(
        self, heads: Numbers, rows: MinibatchArrays, coefficients: Coefficients, share: float, of_heads: Numbers
    ) -> tuple[float, float, Numbers]:
        """Write the gradients of heads [H, R] to `of_heads`, and that of log σ.

        Returns:
            Policy loss, entropy and log-ratios [P, R].
        """
        actions = self._likelihood
        log_ratios, entropy = actions.forward(heads, rows.continuous, rows.choices, rows.penalties)
        if self._joint and len(log_ratios) > 1:
            log_ratios = np.add.reduce(log_ratios, axis=0, keepdims=True)
        log_ratios -= rows.old_log_probs
        policy, of_log_probs = clipped_by_hand(log_ratios, rows.advantages, coefficients.epsilon)
        if share != 1.0:
            of_log_probs *= share
        actions.backward(of_log_probs, -coefficients.beta * share, of_heads)
        return policy, entropy, log_ratios


class _StepInputs(NamedTuple):
    """All that changes from one gradient step to the next."""

    block: PackedColumns
    others: tuple[Tensor, ...]
    """Images and sets."""
    scheduled: Tensor
    """[2 + k] learning rate, clip range, and the weights of the losses."""


class _StepOutputs(NamedTuple):
    losses: Tensor
    norms: Tensor
    log_ratios: Tensor


class CapturedPPOSteps:
    """Gradient steps of a network without memory, alone, as CUDA graphs: the `advance` of a `PPOUpdate`.

    Shuffles, `target_kl` and checks stay outside of graphs.

    Args:
        update: makes the steps.
        graphs: captures them.
        tell: is told once why steps are not captured, if that is so.
    """

    def __init__(self, update: PPOUpdate, graphs: Graphs, tell: Callable[[str], None]) -> None:
        self._update = update
        self._captured = CapturedStep(self._step, graphs, tell)
        self._weights = self._scheduled = update.network.values[:0]

    def __call__(
        self, minibatch: Minibatch, coefficients: Coefficients, weights: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Make a gradient step, by its graph once there is one."""
        assert minibatch.block is not None, "there is no memory"
        if weights is not self._weights:  # of another update: what else is scheduled goes to the device with them
            others = torch.tensor([coefficients.learning_rate, coefficients.epsilon])
            self._weights, self._scheduled = weights, torch.cat([to_device(others, weights.device), weights])
        found = self._captured(_StepInputs(minibatch.block, minibatch.inputs.others, self._scheduled))
        self._update.adam.steps += 1
        if not self._update.measuring:
            return found.losses.clone(), None
        losses, norms, self._update.ratios = copied(found)
        return losses, norms

    def _step(self, inputs: _StepInputs) -> _StepOutputs:
        rate, epsilon, weights = inputs.scheduled[0], inputs.scheduled[1], inputs.scheduled[2:]
        minibatch = Minibatch.of_block(inputs.block, torch.empty(0, dtype=torch.int64), inputs.others)
        # Torch takes a tensor [] wherever it takes a number, but its types do not say so.
        coefficients = Coefficients(cast("float", rate), 0.0, cast("float", epsilon))
        losses, norms = self._update.step(minibatch, coefficients, weights)
        assert self._update.ratios is not None, "PPO clips them"
        return _StepOutputs(losses, self._update.norms() if norms is None else norms, self._update.ratios)

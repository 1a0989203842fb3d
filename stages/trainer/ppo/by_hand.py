"""PPO's losses and their gradients, without autograd; the derivation is in `stages/trainer/on_policy/by_hand.py`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headrace.queues.specs import ActionSpec
from headrace.stages.policy.network.protocol import Perceptrons
from headrace.stages.trainer.on_policy.by_hand import (
    ActionLikelihood,
    Numbers,
    PerceptronsByHand,
    clipped_by_hand,
    squared_by_hand,
)
from headrace.stages.trainer.on_policy.minibatches import Minibatch, MinibatchArrays
from headrace.stages.trainer.on_policy.update import VALUE_COEFFICIENT


class PPOByHand:
    """The losses of `PPOUpdate` and their gradients, without autograd.

    Args:
        network: two perceptrons, or one with both heads.
        actions: the behaviour's.
        ratio_per_dimension: whether ratios are those of each action dimension and branch, or of the joint action.
        rows: what minibatches will mostly have.
    """

    def __init__(self, network: Perceptrons, actions: ActionSpec, ratio_per_dimension: bool, rows: int) -> None:
        self._perceptron = PerceptronsByHand(network, rows)
        self._surrogate = SurrogateByHand(network, actions, ratio_per_dimension)

    def find_gradients(self, batch: Minibatch, epsilon: float, beta: float, share: float) -> tuple[Tensor, Tensor]:
        """Write the gradients of `share` times the weighted losses; returns losses [3] and log-ratios [R, P]."""
        network, rows = self._perceptron, batch.arrays
        with np.errstate(all="ignore"):  # what is not finite is looked for when the update is over
            network.forward(batch.inputs.vectors)
            policy, entropy, log_ratios = self._surrogate(network.heads, rows, epsilon, beta, share, network.of_heads)
            value = squared_by_hand(network.values, rows.returns, VALUE_COEFFICIENT * share, network.of_values)
            network.backward()
        return torch.from_numpy(np.array([policy, value, entropy], log_ratios.dtype)), torch.from_numpy(log_ratios.T)


class ActorByHand:
    """The policy loss and the entropy of `PPOByHand`, of an actor whose critic learns elsewhere; see there."""

    def __init__(self, actor: Perceptrons, actions: ActionSpec, ratio_per_dimension: bool, rows: int) -> None:
        self._perceptron = PerceptronsByHand(actor, rows)
        self._surrogate = SurrogateByHand(actor, actions, ratio_per_dimension)

    def find_gradients(self, batch: Minibatch, epsilon: float, beta: float, share: float) -> tuple[Tensor, Tensor]:
        """Write the actor's gradients; returns policy loss and entropy [2], and log-ratios [R, P]."""
        network = self._perceptron
        with np.errstate(all="ignore"):
            network.forward(batch.inputs.vectors)
            policy, entropy, log_ratios = self._surrogate(
                network.heads, batch.arrays, epsilon, beta, share, network.of_heads
            )
            network.backward()
        return torch.from_numpy(np.array([policy, entropy], log_ratios.dtype)), torch.from_numpy(log_ratios.T)


class SurrogateByHand:
    """The clipped policy loss, and the entropy bonus.

    Args:
        network: has the standard deviations.
        actions: the behaviour's.
        ratio_per_dimension: see `PPOByHand`.
    """

    def __init__(self, network: Perceptrons, actions: ActionSpec, ratio_per_dimension: bool) -> None:
        self._likelihood = ActionLikelihood(network, actions)
        self._joint = not ratio_per_dimension

    def __call__(
        self, heads: Numbers, rows: MinibatchArrays, epsilon: float, beta: float, share: float, of_heads: Numbers
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
        policy, of_log_probs = clipped_by_hand(log_ratios, rows.advantages, epsilon)
        if share != 1.0:
            of_log_probs *= share
        actions.backward(of_log_probs, -beta * share, of_heads)
        return policy, entropy, log_ratios

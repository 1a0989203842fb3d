"""The losses of proximal policy optimisation.

Schulman et al. (2017), "Proximal Policy Optimization Algorithms".
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.config import OnPolicyHyperparameters
from headrace.queues.specs import BehaviorSpec
from headrace.stages.policy.network.inputs import Inputs
from headrace.stages.policy.network.protocol import ActorCriticNetwork
from headrace.stages.trainer.on_policy.minibatches import Minibatch
from headrace.stages.trainer.on_policy.update import VALUE_COEFFICIENT, Coefficients, OnPolicyUpdate, value_loss
from headrace.stages.trainer.ppo.by_hand import PPOByHand
from headrace.stages.trainer.replicas import SINGLE_TRAINER, Replicas


class PPOUpdate(OnPolicyUpdate[Minibatch]):
    """Trains an actor and a critic that values single agents.

    Args:
        network: the network to train.
        spec: its actions.
        hyperparameters: epochs, batch size and so on.
        replicas: those that make the same update.
        by_hand: finds the gradients; None: autograd does.
    """

    names = ("policy loss", "value loss", "entropy")
    weights = (1.0, VALUE_COEFFICIENT)

    def __init__(
        self,
        network: ActorCriticNetwork,
        spec: BehaviorSpec,
        hyperparameters: OnPolicyHyperparameters,
        replicas: Replicas = SINGLE_TRAINER,
        by_hand: PPOByHand | None = None,
    ) -> None:
        super().__init__(network, spec, hyperparameters, replicas)
        self._actor_critic = network
        self._by_hand = by_hand

    def heads(self, inputs: Inputs) -> Tensor:
        """The actor's heads [B, H]."""
        return self._actor_critic.heads(inputs)

    def find_gradients(self, minibatch: Minibatch, coefficients: Coefficients, weights: Tensor) -> Tensor:
        """Set the gradients, by hand where that is possible."""
        if self._by_hand is None:
            return super().find_gradients(minibatch, coefficients, weights)
        share = 1.0 if self.replicas.size == 1 else minibatch.share
        losses, log_ratios = self._by_hand.find_gradients(minibatch, coefficients.epsilon, coefficients.beta, share)
        self.keep_ratios(log_ratios)
        return losses

    def losses(self, batch: Minibatch, coefficients: Coefficients) -> tuple[Tensor, Tensor, Tensor]:
        """Policy loss, value loss and entropy."""
        heads, values = self._actor_critic(batch.inputs, batch.critic_memories)
        if batch.real is not None:  # padding leaves here: means over the rest are the masked means
            heads, values = heads.index_select(0, batch.real), values.index_select(0, batch.real)
        log_probs, entropy = self.log_probs_and_entropy(heads, batch)
        log_ratios = log_probs - batch.old_log_probs
        self.keep_ratios(log_ratios)
        policy = clipped_policy_loss(log_ratios, batch.advantages, coefficients.epsilon)
        return policy, value_loss(values, batch.returns), entropy


def clipped_policy_loss(log_ratios: Tensor, advantages: Tensor, epsilon: float) -> Tensor:
    """The clipped surrogate, eq. 7, with its sign turned so that less is better.

    Args:
        log_ratios: [R, P] log-probabilities of the actions under the policy that is trained, less those under the
            policy before the update, or the one that acted if they are not decoupled: one column for the joint action,
            or one per action dimension and branch.
        advantages: [R, 1] normalised; [R, P] if weighted.
        epsilon: how far a ratio may leave 1 and still be encouraged.

    Returns:
        The mean over rows and columns: a scalar.
    """
    ratio = torch.exp(log_ratios)
    clipped = ratio.clamp(1.0 - epsilon, 1.0 + epsilon)
    cost = -advantages
    return torch.maximum(ratio * cost, clipped * cost).mean()

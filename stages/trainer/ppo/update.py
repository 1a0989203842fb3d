"""The losses of proximal policy optimisation.

Schulman et al. (2017), "Proximal Policy Optimization Algorithms".
"""

from __future__ import annotations

import torch
from torch import Tensor

from config import OnPolicyHyperparameters
from queues.specs import BehaviorSpec
from stages.policy.network.inputs import Inputs
from stages.policy.network.protocol import ActorCriticNetwork
from stages.trainer.on_policy.minibatches import Minibatch
from stages.trainer.on_policy.update import VALUE_COEFFICIENT, Coefficients, OnPolicyUpdate, value_loss
from stages.trainer.replicas import ALONE, Replicas


class PPOUpdate(OnPolicyUpdate[Minibatch]):
    """Trains an actor and a critic that values single agents."""

    names = ("policy loss", "value loss", "entropy")
    weights = (1.0, VALUE_COEFFICIENT)

    def __init__(
        self,
        network: ActorCriticNetwork,
        spec: BehaviorSpec,
        hyperparameters: OnPolicyHyperparameters,
        replicas: Replicas = ALONE,
    ) -> None:
        super().__init__(network, spec, hyperparameters, replicas)
        self._actor_critic = network

    def heads(self, inputs: Inputs) -> Tensor:
        """The actor's heads [B, H]."""
        return self._actor_critic.heads(inputs)

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

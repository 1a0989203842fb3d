"""POCA's losses: PPO's, and that of the counterfactual baseline."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.config import OnPolicyHyperparameters
from headrace.queues.specs import BehaviorSpec
from headrace.stages.policy.network.inputs import Inputs
from headrace.stages.trainer.on_policy.update import VALUE_COEFFICIENT, Coefficients, OnPolicyUpdate, value_loss
from headrace.stages.trainer.poca.network import GroupActorCritic
from headrace.stages.trainer.poca.teams import GroupMinibatch
from headrace.stages.trainer.ppo.by_hand import ActorByHand
from headrace.stages.trainer.ppo.update import clipped_policy_loss
from headrace.stages.trainer.replicas import SINGLE_TRAINER, Replicas

BASELINE_COEFFICIENT = 0.5
"""Weight of the baseline's loss beside the value's, as in ML-Agents."""


class POCAUpdate(OnPolicyUpdate[GroupMinibatch]):
    """Trains an actor and a critic of whole groups.

    Args:
        network: the network to train.
        spec: its actions.
        hyperparameters: epochs, batch size and so on.
        replicas: those that make the same update.
        by_hand: finds the actor's gradients; None: autograd does, as it does for the critic's.
    """

    names = ("policy loss", "value loss", "baseline loss", "entropy")
    weights = (1.0, VALUE_COEFFICIENT, VALUE_COEFFICIENT * BASELINE_COEFFICIENT)

    def __init__(
        self,
        network: GroupActorCritic,
        spec: BehaviorSpec,
        hyperparameters: OnPolicyHyperparameters,
        replicas: Replicas = SINGLE_TRAINER,
        by_hand: ActorByHand | None = None,
    ) -> None:
        super().__init__(network, spec, hyperparameters, replicas)
        self._actor_critic = network
        self._by_hand = by_hand

    def heads(self, inputs: Inputs) -> Tensor:
        """The actor's heads [B, H]."""
        return self._actor_critic.heads(inputs)

    def find_gradients(self, minibatch: GroupMinibatch, coefficients: Coefficients, weights: Tensor) -> Tensor:
        """Set the gradients, the actor's by hand where that is possible."""
        if self._by_hand is None:
            return super().find_gradients(minibatch, coefficients, weights)
        share = 1.0 if self.replicas.size == 1 else minibatch.share
        self.network.gradients.zero_()
        of_critic = torch.stack(self._critic_losses(minibatch, coefficients.epsilon))
        torch.autograd.backward(of_critic @ weights[1:3] * share)
        of_actor, log_ratios = self._by_hand.find_gradients(
            minibatch.own, coefficients.epsilon, coefficients.beta, share
        )
        self.keep_ratios(log_ratios)
        return torch.cat([of_actor[:1], of_critic.detach(), of_actor[1:]])

    def losses(self, batch: GroupMinibatch, coefficients: Coefficients) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Policy loss, value loss, baseline loss and entropy."""
        own = batch.own
        heads = self._actor_critic.heads(own.inputs)
        if own.real is not None:  # padding leaves here: means over the rest are the masked means
            heads = heads.index_select(0, own.real)
        log_probs, entropy = self.log_probs_and_entropy(heads, own)
        log_ratios = log_probs - own.old_log_probs
        self.keep_ratios(log_ratios)
        policy = clipped_policy_loss(log_ratios, own.advantages, coefficients.epsilon)
        return policy, *self._critic_losses(batch, coefficients.epsilon), entropy

    def _critic_losses(self, batch: GroupMinibatch, epsilon: float) -> tuple[Tensor, Tensor]:
        """Value loss and baseline loss."""
        own = batch.own
        values, baselines = self._actor_critic.values_and_baselines(batch.teams)
        if own.real is not None:
            values, baselines = values.index_select(0, own.real), baselines.index_select(0, own.real)
        return value_loss(values, own.returns), baseline_loss(baselines, batch.old_baselines, own.returns, epsilon)


def baseline_loss(baselines: Tensor, old_baselines: Tensor, returns: Tensor, epsilon: float) -> Tensor:
    """Squared error that encourages no step of more than ε away from the old baseline, as in ML-Agents.

    Args:
        baselines: [B, S]
        old_baselines: [B, S] before the update.
        returns: [B, S] targets.
        epsilon: the clip range.

    Returns:
        The mean over rows and signals: a scalar.
    """
    clipped = old_baselines + (baselines - old_baselines).clamp(-epsilon, epsilon)
    return torch.maximum((returns - baselines).square(), (returns - clipped).square()).mean()

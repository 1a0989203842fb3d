"""POCA's losses: PPO's, and that of the counterfactual baseline."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.queues.specs import ActionSpec
from headrace.stages.policy.network.protocol import Perceptrons
from headrace.stages.policy.network.transfers import Inputs
from headrace.stages.trainer.on_policy.update import (
    VALUE_COEFFICIENT,
    Coefficients,
    OnPolicyUpdate,
    clipped_policy_loss,
    value_loss,
)
from headrace.stages.trainer.poca.network import GroupActorCritic
from headrace.stages.trainer.poca.teams import GroupMinibatch
from headrace.stages.trainer.ppo.gradients import ActorByHand

BASELINE_COEFFICIENT = 0.5
"""Weight of the baseline's loss beside the value's, as in ML-Agents."""


class POCAUpdate(OnPolicyUpdate[GroupMinibatch]):
    """Trains an actor and a critic of whole groups; arguments as of `OnPolicyUpdate`."""

    names = ("policy loss", "value loss", "baseline loss", "entropy")
    weights = (1.0, VALUE_COEFFICIENT, VALUE_COEFFICIENT * BASELINE_COEFFICIENT)
    network: GroupActorCritic

    def heads(self, inputs: Inputs) -> Tensor:
        """The actor's heads [B, H]."""
        return self.network.heads(inputs)

    def losses(self, batch: GroupMinibatch, coefficients: Coefficients) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Policy loss, value loss, baseline loss and entropy."""
        own = batch.own
        heads = self.network.heads(own.inputs)
        if own.real is not None:  # padding leaves here: means over the rest are the masked means
            heads = heads.index_select(0, own.real)
        log_probs, entropy = self.log_probs_and_entropy(heads, own)
        log_ratios = log_probs - own.old_log_probs
        self.ratios = log_ratios.detach()
        policy = clipped_policy_loss(log_ratios, own.advantages, coefficients.epsilon)
        return policy, *self.critic_losses(batch, coefficients.epsilon), entropy

    def critic_losses(self, batch: GroupMinibatch, epsilon: float) -> tuple[Tensor, Tensor]:
        """Value loss and baseline loss."""
        own = batch.own
        values, baselines = self.network.values_and_baselines(batch.teams)
        if own.real is not None:
            values, baselines = values.index_select(0, own.real), baselines.index_select(0, own.real)
        return value_loss(values, own.returns), baseline_loss(baselines, batch.old_baselines, own.returns, epsilon)


class POCAByHand:
    """The gradients of `POCAUpdate`, of an actor that is a perceptron without autograd: its `find_gradients`.

    Args:
        update: finds those of the critic.
        actor: the perceptron.
        actions: the behaviour's.
    """

    def __init__(self, update: POCAUpdate, actor: Perceptrons, actions: ActionSpec) -> None:
        self._update = update
        self._actor = ActorByHand(update, actor, actions)

    def __call__(self, batch: GroupMinibatch, coefficients: Coefficients, weights: Tensor) -> Tensor:
        """Set the gradients; returns the losses [4]."""
        self._update.network.gradients.zero_()
        of_critic = torch.stack(self._update.critic_losses(batch, coefficients.epsilon))
        torch.autograd.backward(of_critic @ weights[1:3] * batch.share)
        of_actor = self._actor(batch.own, coefficients)
        return torch.cat([of_actor[:1], of_critic.detach(), of_actor[1:]])


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

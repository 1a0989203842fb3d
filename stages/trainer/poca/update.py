"""POCA's losses: PPO's, and that of the counterfactual baseline."""

from __future__ import annotations

import torch
from torch import Tensor

from config import OnPolicyHyperparameters
from queues.specs import BehaviorSpec
from stages.policy.network.inputs import Inputs
from stages.trainer.on_policy.update import VALUE_COEFFICIENT, Coefficients, OnPolicyUpdate, value_loss
from stages.trainer.poca.network import GroupActorCritic
from stages.trainer.poca.teams import GroupMinibatch
from stages.trainer.ppo.update import clipped_policy_loss
from stages.trainer.replicas import ALONE, Replicas

BASELINE_COEFFICIENT = 0.5
"""Weight of the baseline's loss beside the value's, as in ML-Agents."""


class POCAUpdate(OnPolicyUpdate[GroupMinibatch]):
    """Trains an actor and a critic of whole groups."""

    names = ("policy loss", "value loss", "baseline loss", "entropy")
    weights = (1.0, VALUE_COEFFICIENT, VALUE_COEFFICIENT * BASELINE_COEFFICIENT)

    def __init__(
        self,
        network: GroupActorCritic,
        spec: BehaviorSpec,
        hyperparameters: OnPolicyHyperparameters,
        replicas: Replicas = ALONE,
    ) -> None:
        super().__init__(network, spec, hyperparameters, replicas)
        self._actor_critic = network

    def heads(self, inputs: Inputs) -> Tensor:
        """The actor's heads [B, H]."""
        return self._actor_critic.heads(inputs)

    def losses(self, batch: GroupMinibatch, coefficients: Coefficients) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Policy loss, value loss, baseline loss and entropy."""
        own, epsilon = batch.own, coefficients.epsilon
        heads = self._actor_critic.heads(own.inputs)
        values, baselines = self._actor_critic.values_and_baselines(batch.teams)
        if own.real is not None:  # padding leaves here: means over the rest are the masked means
            heads, values, baselines = (x.index_select(0, own.real) for x in (heads, values, baselines))
        log_probs, entropy = self.log_probs_and_entropy(heads, own)
        log_ratios = log_probs - own.old_log_probs
        self.keep_ratios(log_ratios)
        policy = clipped_policy_loss(log_ratios, own.advantages, epsilon)
        baseline = baseline_loss(baselines, batch.old_baselines, own.returns, epsilon)
        return policy, value_loss(values, own.returns), baseline, entropy


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

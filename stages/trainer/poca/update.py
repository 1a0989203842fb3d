"""POCA's update: PPO's, with the losses of a critic of whole groups."""

from __future__ import annotations

from torch import Tensor

from config import POCAHyperparameters
from queues.specs import BehaviorSpec
from stages.trainer.on_policy.loss import value_loss
from stages.trainer.on_policy.update import VALUE_COEFFICIENT, Coefficients, PolicyUpdate
from stages.trainer.poca.loss import baseline_loss
from stages.trainer.poca.network import GroupActorCritic
from stages.trainer.poca.rollout import GroupMinibatch

BASELINE_COEFFICIENT = 0.5
"""Weight of the baseline's loss beside the value's, as in ML-Agents."""


class POCAUpdate(PolicyUpdate[GroupMinibatch]):
    """Trains an actor and a critic that judges groups."""

    names = ("policy loss", "value loss", "baseline loss", "entropy")
    weights = (1.0, VALUE_COEFFICIENT, VALUE_COEFFICIENT * BASELINE_COEFFICIENT)

    def __init__(self, network: GroupActorCritic, spec: BehaviorSpec, hyperparameters: POCAHyperparameters) -> None:
        super().__init__(network, spec, hyperparameters)
        self._actor_critic = network

    def losses(self, batch: GroupMinibatch, coefficients: Coefficients) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Policy loss, value loss, baseline loss and entropy."""
        own = batch.own
        heads = self._actor_critic.heads(own.inputs)
        values, baselines = self._actor_critic.judge(batch.teams)
        if own.real is not None:  # padding leaves here: means over the rest are the masked means
            heads, values, baselines = (x.index_select(0, own.real) for x in (heads, values, baselines))
        policy, entropy = self._actor_losses(heads, own, coefficients)
        clipped = baseline_loss(baselines, batch.old_baselines, own.returns, coefficients.epsilon)
        return policy, value_loss(values, own.returns), clipped, entropy

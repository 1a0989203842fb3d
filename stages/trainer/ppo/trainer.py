"""Proximal policy optimisation with ML-Agents' semantics, as a `Trainer`."""

from __future__ import annotations

from typing import cast

from config import PPOHyperparameters
from queues.messages import TrajectoryBatch
from stages.policy.network.factory import make_actor_critic
from stages.trainer.intake import with_group_rewards
from stages.trainer.on_policy.minibatch import Minibatch
from stages.trainer.on_policy.preparation import Preparation
from stages.trainer.on_policy.trainer import OnPolicyTrainer, Parts
from stages.trainer.on_policy.update import PPOUpdate


class PPOTrainer(OnPolicyTrainer[Minibatch]):
    """The critic judges each agent by what it sees itself. What a group gets counts as each member's own reward."""

    hyperparameters = PPOHyperparameters

    def add(self, batch: TrajectoryBatch) -> None:
        """Copy trajectories into the buffer, and update the normaliser; see `OnPolicyTrainer`."""
        super().add(with_group_rewards(batch))

    def _assemble(self) -> Parts[Minibatch]:
        context, hyperparameters = self.context, cast("PPOHyperparameters", self._hyperparameters)
        signals, shared = len(self._signals.names), hyperparameters.shared_critic
        network = make_actor_critic(self._design, signals, shared, self._random, context.device)
        return Parts(
            network,
            lambda inputs: network(inputs)[0],
            PPOUpdate(network, context.spec, hyperparameters),
            Preparation(self._design, hyperparameters, network, self._intake, self._signals, context.device),
        )

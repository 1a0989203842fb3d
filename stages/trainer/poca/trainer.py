"""MA-POCA with ML-Agents' semantics, as a `Trainer`: PPO for groups of agents with a common reward.

Cohen et al. (2021), "On the Use and Misuse of Absorbing States in Multi-agent Reinforcement Learning". Each agent acts
by what it sees itself. The critic looks at all members of its group: from its value of the group come the returns, and
its counterfactual baseline, which knows what the mates do but not what the agent does, is what they are compared with.
An agent that leaves before its group's end learns from what becomes of those who are left.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

from config import POCAHyperparameters
from stages.trainer.on_policy.trainer import OnPolicyTrainer, Parts
from stages.trainer.poca.mates import kept
from stages.trainer.poca.network import GroupActorCritic
from stages.trainer.poca.preparation import GroupPreparation
from stages.trainer.poca.rollout import GroupMinibatch
from stages.trainer.poca.update import POCAUpdate
from stages.trainer.protocol import TrainerContext

log = logging.getLogger(__name__)

_LARGEST = "largest_group"


class POCATrainer(OnPolicyTrainer[GroupMinibatch]):
    """The critic judges agents by what their whole group sees and does."""

    hyperparameters = POCAHyperparameters

    def __init__(self, context: TrainerContext) -> None:
        super().__init__(context)
        if not context.spec.grouped:
            log.warning(
                "%s: trainer_type poca is for groups of agents, but the environment has none: each agent learns for "
                "itself, which ppo does faster",
                context.behavior,
            )

    def state_dict(self) -> dict[str, Any]:
        """As PPO's, and how large groups have been."""
        state = {**super().state_dict(), _LARGEST: self._groups.largest}
        return {**state, "buffer": kept(state["buffer"])} if self._buffer.grouped else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`; see `OnPolicyTrainer`."""
        super().load_state_dict(state)
        self._groups.largest = int(state[_LARGEST])

    def warm_state(self) -> dict[str, Any]:
        """Actor, critic, normaliser, and how large groups have been."""
        return {**super().warm_state(), _LARGEST: self._groups.largest}

    def warm_start(self, state: Mapping[str, Any]) -> None:
        """Start from `warm_state()` of another run; see `OnPolicyTrainer`."""
        super().warm_start(state)
        self._groups.largest = int(state[_LARGEST])

    def _assemble(self) -> Parts[GroupMinibatch]:
        context, hyperparameters = self.context, cast("POCAHyperparameters", self._hyperparameters)
        network = GroupActorCritic(self._design, len(self._signals.names), self._random, context.device)
        self._groups = GroupPreparation(
            self._design, hyperparameters, network, self._intake, self._signals, context.device
        )
        update = POCAUpdate(network, context.spec, hyperparameters)
        return Parts(network, network.heads, update, self._groups, context.spec.grouped)

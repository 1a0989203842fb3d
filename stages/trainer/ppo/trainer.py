"""Proximal policy optimisation with ML-Agents' semantics, as a `Trainer`."""

from __future__ import annotations

from functools import partial
from typing import cast

import torch

from headrace.config import PPOHyperparameters
from headrace.queues.messages import TrajectoryBatch
from headrace.stages.policy.network.factory import make_actor_critic
from headrace.stages.trainer.agent_table import Chains
from headrace.stages.trainer.captured_step import graphs_for, say_uncaptured
from headrace.stages.trainer.intake import with_group_rewards
from headrace.stages.trainer.on_policy.critic_values import (
    CriticValues,
    evaluate_rows,
    evaluate_sequences,
    rows_per_pass,
)
from headrace.stages.trainer.on_policy.minibatches import InputRows, Minibatch
from headrace.stages.trainer.on_policy.rollout_buffer import BufferTransitions, SequenceCuts
from headrace.stages.trainer.on_policy.trainer import VALUES, OnPolicyTrainer, Prepared
from headrace.stages.trainer.ppo.by_hand import PPOByHand
from headrace.stages.trainer.ppo.captured import CapturedPPOUpdate
from headrace.stages.trainer.ppo.update import PPOUpdate


class PPOTrainer(OnPolicyTrainer[Minibatch]):
    """The critic values each agent by its own observations. The group's reward counts as each member's own."""

    hyperparameters = PPOHyperparameters

    def add(self, batch: TrajectoryBatch) -> None:
        """Copy trajectories into the buffer, and update the normaliser; see `OnPolicyTrainer`."""
        super().add(with_group_rewards(batch))

    def _make_update(self) -> PPOUpdate:
        signals, device = len(self._signals.names), self.context.device
        self._critic = network = make_actor_critic(self._design, signals, self._shares_body, self._random, device)
        perceptrons = self._perceptrons(network)
        by_hand = None
        if perceptrons is not None:
            h = self._hyperparameters
            by_hand = PPOByHand(perceptrons, self.context.spec.actions, h.ratio_per_dimension, h.batch_size)
        arguments = network, self.context.spec, self._hyperparameters, self.context.replicas
        graphs = graphs_for(self.context)
        if graphs is None:
            return PPOUpdate(*arguments, by_hand)
        return CapturedPPOUpdate(*arguments, graphs=graphs, tell=partial(say_uncaptured, self.context))

    def _critic_memory_size(self) -> int:
        # A critic that shares the actor's body shares the actor's memories as well, which are recorded.
        return 0 if self._shares_body else self._design.memory_size

    @property
    def _shares_body(self) -> bool:
        return cast("PPOHyperparameters", self._hyperparameters).shared_critic

    def _prepare(self, transitions: BufferTransitions | None, chains: Chains | None) -> Prepared[Minibatch]:
        buffer, cuts = self._buffer, self._buffer.cuts()
        rewards = self._signals.rewards(buffer.rows["rewards"], transitions)
        before, last = (None, None) if cuts is None else buffer.previous_action_features()
        inputs = self._input_rows(buffer.rows, "", before)
        values = self._evaluate(inputs, self._input_rows(buffer.trajectories, "next_", last), cuts, chains)
        per_signal = self._advantages(rewards, values, buffer.trajectories["terminated"])
        critic_memories = None if self._critic_memories is None else values.memories
        returns = per_signal + values.values
        rollout = self._rollout(inputs, per_signal, returns, cuts, critic_memories, values.heads)
        return Prepared(rollout, rewards, values, returns, {VALUES: values.values})

    def _evaluate(
        self, rows: InputRows, finals: InputRows, cuts: SequenceCuts | None, chains: Chains | None
    ) -> CriticValues:
        block = rows_per_pass(self._spec)
        if cuts is None:
            replicas = self.context.replicas
            heads = self._hyperparameters.decoupled and replicas.size == 1
            return evaluate_rows(self._critic, rows, finals, block, replicas, heads)
        if self._critic_memories is None:
            first = torch.from_numpy(cuts.first).to(rows.device)
            initial, chains = self._actor_memories().index_select(0, first), Chains.unlinked(len(finals))
        else:
            assert chains is not None, "the buffer follows agents with memory"
            initial = torch.from_numpy(self._critic_memories.before(self._buffer)).to(rows.device)
        lengths = self._buffer.trajectories["lengths"]
        return evaluate_sequences(self._critic, rows, finals, lengths, cuts, chains, initial, block)

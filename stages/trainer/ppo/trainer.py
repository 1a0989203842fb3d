"""Proximal policy optimisation with ML-Agents' semantics, as a `Trainer`: from a full buffer to what the update takes.

The losses, the epochs and the step are in `stages/trainer/on_policy/update.py`. See docs/differences.md for the
differences from ML-Agents: the ratio is of the joint action, and an update learns from `buffer_size` rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.config import OnPolicyHyperparameters, PPOHyperparameters
from headrace.queues.messages import Array, TrajectoryBatch
from headrace.stages.policy.design import MASK_PENALTY
from headrace.stages.policy.network.actor_critic import make_actor_critic
from headrace.stages.trainer.adam import flushed_denormals
from headrace.stages.trainer.agent_table import AgentTable, Chains
from headrace.stages.trainer.gradients import graphs_for, say_uncaptured
from headrace.stages.trainer.intake import with_group_rewards
from headrace.stages.trainer.on_policy.minibatches import InputRows, MinibatchSource, Rollout, SequenceRollout
from headrace.stages.trainer.on_policy.rollout_buffer import BufferTransitions, RolloutBuffer, SequenceCuts
from headrace.stages.trainer.on_policy.trainer import OnPolicyTrainer
from headrace.stages.trainer.on_policy.update import Coefficients, Losses, OnPolicyUpdate, PPOUpdate
from headrace.stages.trainer.on_policy.values import (
    CriticValues,
    advantages,
    evaluate_rows,
    evaluate_sequences,
    explained_variances,
    importance_weights,
    normalized,
    rows_per_pass,
)
from headrace.stages.trainer.ppo.gradients import CapturedPPOSteps, PPOByHand
from headrace.stages.trainer.protocol import BETA_FLOOR, EPSILON_FLOOR, LEARNING_RATE_FLOOR, Schedule, TrainerContext

VALUES = "Value Estimate"
"""Part of the name of a statistic."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Prepared:
    """A full buffer, prepared for the update."""

    rollout: MinibatchSource[Any]
    rewards: Floats
    """[N, S] of the rows, times strength."""
    values: CriticValues
    returns: Floats
    """[N, S] value targets of the rows."""
    estimates: Mapping[str, Floats]
    """[N, S] each, by the names under which their means are reported."""


class PPOTrainer(OnPolicyTrainer[OnPolicyHyperparameters, OnPolicyUpdate[Any]]):
    """Learns one behaviour in epochs of minibatches of full buffers; see `OnPolicyTrainer` for errors.

    The critic values each agent by its own observations. The group's reward counts as each member's own.
    """

    hyperparameters: ClassVar[type[OnPolicyHyperparameters]] = PPOHyperparameters
    follows_groups: ClassVar[bool] = False
    """True if the buffer keeps the members of each group."""

    def __init__(self, context: TrainerContext) -> None:
        super().__init__(context)
        self._rows_per_pass = rows_per_pass(context.spec)
        memory_size = self._critic_memory_size()
        self._critic_memories = AgentTable(memory_size, "float32") if memory_size else None
        """The critic's memory [m] of each agent in the middle of an episode, from one trajectory to the next."""

    @property
    def rows_per_update(self) -> int:
        """`buffer_size`."""
        return self._hyperparameters.buffer_size

    @property
    def corrects_age(self) -> bool:
        """True if the clip is centred on the policy that learns."""
        return self._hyperparameters.decoupled

    def add(self, batch: TrajectoryBatch) -> None:
        """Copy trajectories into the buffer, and update the normaliser; see `OnPolicyTrainer`."""
        super().add(batch if self.follows_groups else with_group_rewards(batch))

    @flushed_denormals()
    def learn(self) -> int:
        """Make one update from `buffer_size` rows; returns their number. What came beyond them waits for the next one.

        With groups there may be a few rows more: see `headrace.stages.trainer.on_policy.splitting`.

        Raises:
            NotFiniteError: if a loss became NaN or infinite; weights, optimizer and buffer are then as before.
        """
        coefficients = self._coefficients()
        chains = self._buffer.chains() if self._follows_agents else None
        transitions = self._signals.transitions(self._buffer)
        prepared = self._prepare(transitions, chains)
        learn_signals = self._signals.learner(transitions)
        with self._update.adam.undone_on_failure():
            losses = self._update.run(prepared.rollout, coefficients, self._random, self.step, learn_signals)
            self._clone()
        rows = len(self._buffer)
        self.version += 1
        self._keep_memories(prepared.values.memories_after, chains)
        self._signals.report(self._buffer, prepared.rewards, chains, self.version)
        self._buffer.clear()
        self._report(losses, coefficients, prepared)
        return rows

    def state_dict(self) -> dict[str, Any]:
        """See `OnPolicyTrainer`; and the critic's memories."""
        memories = self._critic_memories
        return {**super().state_dict(), "critic_memories": None if memories is None else memories.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`."""
        super().load_state_dict(state)
        with self.context.naming_behavior():
            if self._critic_memories is not None and state["critic_memories"] is not None:
                self._critic_memories.load_state_dict(state["critic_memories"])

    def _make_update(self) -> OnPolicyUpdate[Any]:
        context, signals = self.context, len(self._signals.names)
        network = make_actor_critic(self._design, signals, self._shares_body, self._random, context.device)
        self._critic: Any = network
        perceptrons = self._perceptrons(network)
        update = PPOUpdate(network, context.spec, self._hyperparameters, context.replicas)
        if perceptrons is not None:
            update.find_gradients = PPOByHand(update, perceptrons, context.spec.actions)
        graphs = graphs_for(context)
        if graphs is not None:
            update.advance = CapturedPPOSteps(update, graphs, partial(say_uncaptured, context))
        return update

    def _make_buffer(self) -> RolloutBuffer:
        return RolloutBuffer(
            self._spec,
            self._intake.layout,
            self._hyperparameters.buffer_size,
            self._memory,
            self._follows_agents,
            grouped=self.follows_groups and self._spec.grouped,
        )

    @property
    def _follows_agents(self) -> bool:
        return self._memory is not None or self._signals.sums is not None

    def _critic_memory_size(self) -> int:
        """Numbers that the critic remembers per agent from one trajectory to the next; 0 for none of its own."""
        # A critic that shares the actor's body shares the actor's memories as well, which are recorded.
        return 0 if self._shares_body else self._design.memory_size

    @property
    def _shares_body(self) -> bool:
        return cast("PPOHyperparameters", self._hyperparameters).shared_critic

    def _coefficients(self) -> Coefficients:
        """The scheduled numbers of the next update."""
        h, steps = self._hyperparameters, self.context.settings.max_steps
        return Coefficients(
            Schedule(h.learning_rate_schedule, h.learning_rate, LEARNING_RATE_FLOOR, steps).at(self.step),
            Schedule(h.beta_schedule, h.beta, BETA_FLOOR, steps).at(self.step),
            Schedule(h.epsilon_schedule, h.epsilon, EPSILON_FLOOR, steps).at(self.step),
        )

    def _prepare(self, transitions: BufferTransitions | None, chains: Chains | None) -> Prepared:
        """Evaluate the full buffer, and put advantages and value targets beside its rows.

        Args:
            transitions: the rows as reward signals take them in; None if there is only the environment's reward.
            chains: which trajectory continues which; None if the buffer does not follow agents.
        """
        buffer, cuts = self._buffer, self._buffer.cuts()
        rewards = self._signals.rewards(buffer.rows["rewards"], transitions)
        before, last = (None, None) if cuts is None else buffer.previous_action_features()
        inputs = self._input_rows(buffer.observations(), before)
        values = self._evaluate(inputs, self._input_rows(buffer.final_observations(), last), cuts, chains)
        per_signal = self._advantages(rewards, values, buffer.trajectories["terminated"])
        critic_memories = None if self._critic_memories is None else values.memories
        returns = per_signal + values.values
        rollout = self._rollout(inputs, per_signal, returns, cuts, critic_memories, values.heads)
        return Prepared(rollout, rewards, values, returns, {VALUES: values.values})

    def _evaluate(
        self, rows: InputRows, finals: InputRows, cuts: SequenceCuts | None, chains: Chains | None
    ) -> CriticValues:
        block = self._rows_per_pass
        if cuts is None:
            replicas = self.context.replicas
            heads = self._hyperparameters.decoupled and replicas.size == 1
            return evaluate_rows(self._critic, rows, finals, block, replicas, heads)
        if self._critic_memories is None:
            first = torch.from_numpy(cuts.first).to(rows.device)
            initial, chains = self._actor_memories().index_select(0, first), Chains.unlinked(len(finals))
        else:
            assert chains is not None, "the buffer follows agents with memory"
            initial = self._memories_before(self._critic_memories).to(rows.device)
        lengths = self._buffer.trajectories["lengths"]
        return evaluate_sequences(self._critic, rows, finals, lengths, cuts, chains, initial, block)

    def _memories_before(self, kept: AgentTable) -> Tensor:
        """[K, m] before each trajectory that continues no other of the buffer; zeros for unknown agents."""
        trajectories = self._buffer.trajectories
        return torch.from_numpy(kept.values_of(trajectories["agent_ids"], trajectories["episode_ids"]))

    def _keep_memories(self, after: Tensor | None, chains: Chains | None) -> None:
        """Keep the critic's memories [K, m] after the trajectories, if it has any, for the agents' next ones."""
        if self._critic_memories is None or after is None or chains is None:
            return
        trajectories, last = self._buffer.trajectories, chains.latest
        agents, episodes = trajectories["agent_ids"][last], trajectories["episode_ids"][last]
        memories, ended = after.cpu().numpy()[last], self._buffer.ended[last]
        self._critic_memories.keep(agents, episodes, memories, ended, self.version)

    def _advantages(self, rewards: Floats, values: CriticValues, over: NDArray[np.bool_]) -> Floats:
        """GAE [N, S], given rewards [N, S] and the trajectories [K] whose end no reward of the task can follow."""
        return advantages(
            rewards,
            values.values,
            values.final_values,
            self._buffer.trajectories["lengths"],
            over[:, None] & ~self._signals.ignore_termination,
            self._signals.gammas,
            self._hyperparameters.lambd,
        )

    def _rollout(
        self,
        inputs: InputRows,
        per_signal: Floats,
        returns: Floats,
        cuts: SequenceCuts | None,
        critic_memories: Tensor | None,
        heads: Tensor | None = None,
    ) -> Rollout | SequenceRollout:
        """The buffer's rows to learn from; in sequences if there are cuts.

        Args:
            inputs: the rows.
            per_signal: [N, S] advantages, not normalised.
            returns: [N, S] value targets.
            cuts: the places of the sequences; None without memory.
            critic_memories: [Q, m] the critic's memory before each sequence; None where it has none of its own.
            heads: [N, H] the actor's heads, if they are known.
        """
        rows, h = self._buffer.rows, self._hyperparameters
        log_probs, (continuous, choices) = rows["log_probs"], self._buffer.actions()
        if not h.ratio_per_dimension:
            log_probs = log_probs.sum(axis=1, keepdims=True)
        penalties: Array = np.empty((len(rows), 0))
        if self._spec.actions.masked:
            penalties = np.where(rows["action_masks"], np.float32(0), MASK_PENALTY)

        def rollout_with(old_log_probs: Array, weighted: Array) -> Rollout | SequenceRollout:
            targets = [continuous, penalties, old_log_probs, weighted, returns]
            if cuts is None:
                return Rollout(inputs, targets, choices)
            return SequenceRollout(inputs, targets, choices, cuts, self._actor_memories(), critic_memories)

        unweighted = normalized(per_signal.mean(axis=1))[:, None]
        rollout = rollout_with(log_probs, unweighted)
        if not h.decoupled:
            return rollout
        if heads is not None and isinstance(rollout, Rollout):
            current = self._update.log_probs(heads, rollout.whole())
        else:
            each = min(self._rows_per_pass, -(-len(rows) // self.context.replicas.size))
            current = self._update.current_log_probs(rollout.in_order(each))
        weights = importance_weights(current, log_probs)
        self.context.statistics.add(self.context.behavior, "Policy/Importance Weight", float(weights.mean()))
        return rollout_with(current, weights * unweighted)

    def _actor_memories(self) -> Tensor:
        """[Q, m] the actor's memory before each sequence, as it was recorded."""
        assert self._buffer.sequences is not None, "the buffer keeps them with memory"
        return torch.from_numpy(self._buffer.sequences["memories"]).to(self.context.device)

    def _report(self, losses: Losses, coefficients: Coefficients, prepared: Prepared) -> None:
        add, behavior = self.context.statistics.add, self.context.behavior
        add(behavior, "Losses/Policy Loss", losses.policy)
        add(behavior, "Losses/Value Loss", losses.value)
        for name, loss in losses.others.items():
            add(behavior, f"Losses/{name}", loss)
        for name, measure in losses.measures.items():
            add(behavior, f"Policy/{name}", measure)
        add(behavior, "Policy/Entropy", losses.entropy)
        add(behavior, "Policy/Learning Rate", coefficients.learning_rate)
        if coefficients.epsilon:
            add(behavior, "Policy/Epsilon", coefficients.epsilon)
        add(behavior, "Policy/Beta", coefficients.beta)
        for estimate, values in prepared.estimates.items():
            for signal, mean in zip(self._signals.names, values.mean(axis=0), strict=True):
                add(behavior, f"Policy/{signal.capitalize()} {estimate}", float(mean))
        explained = explained_variances(prepared.values.values, prepared.returns)
        for signal, share in zip(self._signals.names, explained, strict=True):
            if np.isfinite(share):  # returns that are all the same have no variance to explain
                add(behavior, f"Policy/{signal.capitalize()} Explained Variance", float(share))

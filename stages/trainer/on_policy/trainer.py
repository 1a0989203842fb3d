"""The trainer that learns from full buffers of on-policy trajectories; its algorithm is a subclass.

See the package for the path of one update, and docs/differences.md for the differences from ML-Agents: the ratio is of
the joint action, and an update learns from `buffer_size` rows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.config import OnPolicyHyperparameters
from headrace.queues.messages import Array
from headrace.stages.policy.layout import MASK_PENALTY
from headrace.stages.trainer.agent_table import Chains
from headrace.stages.trainer.denormals import flushed_denormals
from headrace.stages.trainer.on_policy.advantages import advantages, explained_variances, normalized
from headrace.stages.trainer.on_policy.critic_values import CriticMemories, CriticValues, rows_per_pass
from headrace.stages.trainer.on_policy.minibatches import (
    AnyMinibatch,
    InputRows,
    Minibatch,
    MinibatchSource,
    Rollout,
    SequenceRollout,
)
from headrace.stages.trainer.on_policy.rollout_buffer import BufferTransitions, RolloutBuffer, SequenceCuts
from headrace.stages.trainer.on_policy.rollout_trainer import RolloutTrainer
from headrace.stages.trainer.on_policy.update import Coefficients, Losses, OnPolicyUpdate
from headrace.stages.trainer.protocol import TrainerContext
from headrace.stages.trainer.schedules import BETA_FLOOR, EPSILON_FLOOR, LEARNING_RATE_FLOOR, Schedule

VALUES = "Value Estimate"
"""Part of the name of a statistic."""


@dataclass(frozen=True)
class Prepared(Generic[AnyMinibatch]):
    """A full buffer, prepared for the update."""

    rollout: MinibatchSource[AnyMinibatch]
    rewards: NDArray[np.float64]
    """[N, S] of the rows, times strength."""
    values: CriticValues
    returns: NDArray[np.float64]
    """[N, S] value targets of the rows."""
    estimates: Mapping[str, NDArray[np.float64]]
    """[N, S] each, by the names under which their means are reported."""


class OnPolicyTrainer(RolloutTrainer[OnPolicyHyperparameters, OnPolicyUpdate[AnyMinibatch]], Generic[AnyMinibatch]):
    """Learns one behaviour in epochs of minibatches of full buffers; see `RolloutTrainer` for errors."""

    follows_groups: ClassVar[bool] = False
    """True if the buffer keeps the members of each group."""

    def __init__(self, context: TrainerContext) -> None:
        super().__init__(context)
        memory_size = self._critic_memory_size()
        self._critic_memories = CriticMemories(memory_size) if memory_size else None

    @property
    def rows_per_update(self) -> int:
        """`buffer_size`."""
        return self._hyperparameters.buffer_size

    @property
    def corrects_age(self) -> bool:
        """True if the clip is centred on the policy that learns."""
        return self._hyperparameters.decoupled

    @flushed_denormals()
    def learn(self) -> int:
        """Make one update from `buffer_size` rows; returns their number. What came beyond them waits for the next one.

        With groups there may be a few rows more: see `headrace.stages.trainer.on_policy.splitting`.

        Raises:
            NotFiniteError: if a loss became NaN or infinite; weights, optimizer and buffer are then as before.
        """
        coefficients = self._coefficients()
        chains = self._buffer.chains() if self._follows_agents else None
        transitions = self._signals.transitions(self._buffer, self._intake.layout)
        prepared = self._prepare(transitions, chains)
        losses = self._improve(prepared.rollout, coefficients, self._signals.learner(transitions))
        rows = len(self._buffer)
        self._version += 1
        after = prepared.values.memories_after
        if self._critic_memories is not None and after is not None and chains is not None:
            self._critic_memories.keep(self._buffer, after, chains, self._version)
        self._signals.report(self._buffer, prepared.rewards, chains, self._version)
        self._buffer.clear()
        self._report(losses, coefficients, prepared)
        return rows

    def state_dict(self) -> dict[str, Any]:
        """See `RolloutTrainer`; and the critic's memories."""
        memories = self._critic_memories
        return {**super().state_dict(), "critic_memories": None if memories is None else memories.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`."""
        super().load_state_dict(state)
        with self.context.naming_behavior():
            if self._critic_memories is not None and state["critic_memories"] is not None:
                self._critic_memories.load_state_dict(state["critic_memories"])

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

    @abstractmethod
    def _critic_memory_size(self) -> int:
        """Numbers that the critic remembers per agent from one trajectory to the next; 0 for none of its own."""

    @abstractmethod
    def _prepare(self, transitions: BufferTransitions | None, chains: Chains | None) -> Prepared[AnyMinibatch]:
        """Evaluate the full buffer, and put advantages and value targets beside its rows.

        Args:
            transitions: the rows as reward signals take them in; None if there is only the environment's reward.
            chains: which trajectory continues which; None if the buffer does not follow agents.
        """

    def _coefficients(self) -> Coefficients:
        """The scheduled numbers of the next update."""
        h, steps = self._hyperparameters, self.context.settings.max_steps
        return Coefficients(
            Schedule(h.learning_rate_schedule, h.learning_rate, LEARNING_RATE_FLOOR, steps).at(self._step),
            Schedule(h.beta_schedule, h.beta, BETA_FLOOR, steps).at(self._step),
            Schedule(h.epsilon_schedule, h.epsilon, EPSILON_FLOOR, steps).at(self._step),
        )

    def _advantages(
        self, rewards: NDArray[np.float64], values: CriticValues, over: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
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
        per_signal: NDArray[np.float64],
        returns: NDArray[np.float64],
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
        rows = self._buffer.rows
        log_probs, (continuous, choices) = rows["log_probs"], self._buffer.actions()
        if not self._hyperparameters.ratio_per_dimension:
            log_probs = log_probs.sum(axis=1, keepdims=True)
        penalties: Array = np.empty((len(rows), 0))
        if self._spec.actions.masked:
            penalties = np.where(rows["action_masks"], np.float32(0), MASK_PENALTY)

        def made(old_log_probs: Array, weighted: Array) -> Rollout | SequenceRollout:
            targets = [continuous, penalties, old_log_probs, weighted, returns]
            if cuts is None:
                return Rollout(inputs, targets, choices)
            return SequenceRollout(inputs, targets, choices, cuts, self._actor_memories(), critic_memories)

        unweighted = normalized(per_signal.mean(axis=1))[:, None]
        rollout = made(log_probs, unweighted)
        if not self._hyperparameters.decoupled:
            return rollout
        if heads is not None and isinstance(rollout, Rollout):
            current = log_probs_of(self._update, heads, rollout.whole())
        else:
            each = min(rows_per_pass(self._spec), -(-len(rows) // self.context.replicas.size))
            current = current_log_probs(self._update, rollout.in_order(each))
        weights = importance_weights(current, log_probs)
        self.context.statistics.add(self.context.behavior, "Policy/Importance Weight", float(weights.mean()))
        return made(current, weights * unweighted)

    def _actor_memories(self) -> Tensor:
        """[Q, m] the actor's memory before each sequence, as it was recorded."""
        assert self._buffer.sequences is not None, "the buffer keeps them with memory"
        return torch.from_numpy(self._buffer.sequences["memories"]).to(self.context.device)

    def _improve(
        self,
        rollout: MinibatchSource[AnyMinibatch],
        coefficients: Coefficients,
        after_each: Callable[[Tensor], None] | None,
    ) -> Losses:
        """Run the update, and after it that of behavioural cloning; neither, if one fails."""
        with self._update.adam.undone_on_failure():
            losses = self._update.run(rollout, coefficients, self._random, self._step, after_each)
            self._clone()
        return losses

    def _report(self, losses: Losses, coefficients: Coefficients, prepared: Prepared[AnyMinibatch]) -> None:
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


# Decoupled PPO: the policy that the clip is centred on, told apart from the policy that acted. Hilton, Cobbe &
# Schulman (2021), "Batch size-invariance for policy optimization". PPO's old policy has two purposes: the clip around
# it bounds the size of an update, which takes the policy before the update; and the ratio to it corrects for actions
# that another policy drew, which takes the one that drew them. The two differ where rows come late, and where the
# normaliser has moved since. With π_now the policy before the update and r = π / π_now, an advantage A counts as
# min(π_now / π_acted, 1) · min(r A, clip(r, 1 - ε, 1 + ε) A). The paper truncates the weight at 100; at 1 no few rows
# outweigh the others. Rows of π_now itself weigh 1: plain PPO. Axis letters: N rows; P columns of log-probabilities.

Floats = NDArray[np.float32]


def log_probs_of(update: OnPolicyUpdate[Any], heads: Tensor, rows: Minibatch) -> Floats:
    """Log-probabilities [N, P] of the actions of N rows, given the actor's heads [N, H], without gradients."""
    with torch.no_grad():
        found: Floats = update.log_probs_and_entropy(heads, rows)[0].cpu().numpy()
    return found


def current_log_probs(update: OnPolicyUpdate[Any], minibatches: Iterable[Minibatch]) -> Floats:
    """Log-probabilities [N, P] of the minibatches' actions under the policy as it is now, without gradients.

    Replicas take turns at the minibatches.
    """
    found, replicas = [], update.replicas
    with torch.no_grad():
        for number, batch in enumerate(minibatches):
            if number % replicas.size != replicas.rank:
                found.append(torch.zeros_like(batch.old_log_probs))
                continue
            heads = update.heads(batch.inputs)
            if batch.real is not None:
                heads = heads.index_select(0, batch.real)
            found.append(update.log_probs_and_entropy(heads, batch)[0])
        all_found = torch.cat(found)
        replicas.add_up(all_found)
        log_probs: Floats = all_found.cpu().numpy()
    return log_probs


def importance_weights(current: Floats, acted: Floats) -> Floats:
    """min(π_now / π_acted, 1) [N, P], of log-probabilities [N, P] under the current policy and the one that acted."""
    weights: Floats = np.exp(np.minimum(current - acted, 0.0))
    return weights

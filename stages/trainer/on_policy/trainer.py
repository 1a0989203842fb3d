"""The trainer that learns from full buffers of on-policy trajectories; its algorithm is a subclass.

See the package for the path of one update, and docs/differences.md for the differences from ML-Agents: the ratio is of
the joint action, and an update learns from `buffer_size` rows.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from config import OnPolicyHyperparameters
from queues.messages import Array, TrajectoryBatch
from stages.policy.layout import MASK_PENALTY
from stages.trainer.agent_table import Chains
from stages.trainer.builtin import BuiltinTrainer
from stages.trainer.imitation.cloning import ClonedActor, make_cloning
from stages.trainer.intake import Intake
from stages.trainer.on_policy.advantages import advantages, normalized
from stages.trainer.on_policy.critic_values import CriticMemories, CriticValues, rows_per_pass
from stages.trainer.on_policy.decoupling import current_log_probs, importance_weights
from stages.trainer.on_policy.minibatches import AnyMinibatch, InputRows, MinibatchSource, Rollout, SequenceRollout
from stages.trainer.on_policy.rollout_buffer import BufferTransitions, ColumnTable, RolloutBuffer, SequenceCuts
from stages.trainer.on_policy.signals import Signals
from stages.trainer.on_policy.update import Coefficients, Losses, OnPolicyUpdate
from stages.trainer.protocol import TrainerContext
from stages.trainer.randomness import random_state, restore_random
from stages.trainer.schedules import BETA_FLOOR, EPSILON_FLOOR, LEARNING_RATE_FLOOR, Schedule

log = logging.getLogger(__name__)

VALUES = "Value Estimate"
"""Part of the name of a statistic."""


@dataclass(frozen=True)
class Prepared(Generic[AnyMinibatch]):
    """A full buffer, prepared for the update."""

    rollout: MinibatchSource[AnyMinibatch]
    rewards: NDArray[np.float64]
    """[N, S] of the rows, times strength."""
    values: CriticValues
    estimates: Mapping[str, NDArray[np.float64]]
    """[N, S] each, by the names under which their means are reported."""


class OnPolicyTrainer(BuiltinTrainer, Generic[AnyMinibatch]):
    """Learns one behaviour from full buffers of on-policy trajectories.

    Raises:
        StageError: if the behaviour can't be trained so: no actions, an observation that no encoder accepts, unusable
            demonstrations.
    """

    hyperparameters: ClassVar[type[OnPolicyHyperparameters]]
    """The model of this trainer's hyperparameters."""
    follows_groups: ClassVar[bool] = False
    """True if the buffer keeps the members of each group."""

    def __init__(self, context: TrainerContext) -> None:
        super().__init__(context)
        settings, spec = context.settings, context.spec
        # A subclass named as `module:Class` gets its hyperparameters as the YAML has them.
        self._hyperparameters = self.hyperparameters.model_validate(settings.hyperparameters)
        self._memory = settings.network_settings.memory
        self._signals = Signals(context)
        self._intake = Intake(spec, settings.network_settings.normalize, bool(self._signals.ignore_termination.any()))
        self._update = self._make_update()
        network = self._network = self._update.network
        actor = ClonedActor(self._design, self._update.heads, network.values, network.gradients, network.named_views)
        self._cloning = make_cloning(context, actor, self._intake, self._random)
        memory_size = self._critic_memory_size()
        self._critic_memories = CriticMemories(memory_size) if memory_size else None
        self._follows_agents = self._memory is not None or self._signals.sums is not None
        self._buffer = RolloutBuffer(
            spec,
            self._intake.layout,
            self._hyperparameters.buffer_size,
            self._memory,
            self._follows_agents,
            grouped=self.follows_groups and spec.grouped,
        )

    @property
    def rows_per_update(self) -> int:
        """`buffer_size`."""
        return self._hyperparameters.buffer_size

    @property
    def corrects_age(self) -> bool:
        """True if the clip is centred on the policy that learns."""
        return self._hyperparameters.decoupled

    def add(self, batch: TrajectoryBatch) -> None:
        """Copy trajectories into the buffer, and update the normalisers."""
        if not batch.num_rows:
            return
        observations, finals = self._intake.encode(batch, self._step)
        self._signals.observe(observations.vectors)
        self._buffer.append(batch, observations, finals)
        self._step += batch.num_rows

    def ready(self) -> bool:
        """Return True if the buffer holds `buffer_size` rows."""
        return len(self._buffer) >= self._hyperparameters.buffer_size

    def learn(self) -> int:
        """Make one update from `buffer_size` rows; returns their number. What came beyond them waits for the next one.

        With groups there may be a few rows more: see `stages.trainer.on_policy.splitting`.

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
        self._report(losses, coefficients, prepared.estimates)
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer, normaliser, signals, counters, randomness, and the rows that wait in the buffer."""
        memories = self._critic_memories
        return {
            "step": self._step,
            "version": self._version,
            "weights": self._network.state_dict(),
            "optimizer": self._update.state_dict(),
            "normalizer": self._intake.normalizer_state(),
            "signals": self._signals.state_dict(),
            "cloning": None if self._cloning is None else self._cloning.state_dict(),
            "critic_memories": None if memories is None else memories.state_dict(),
            "random": random_state(self._random),
            "buffer": self._buffer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`."""
        if (self._cloning is None) != (state["cloning"] is None):
            log.warning(
                "%s: behavioral_cloning %s",
                self.context.behavior,
                "is off now; the run went with it until here" if self._cloning is None else "is new to this run",
            )
        with self.context.naming_behavior():
            self._network.load(state["weights"])
            self._update.load_state_dict(state["optimizer"])
            self._intake.load_normalizer(state["normalizer"])
            self._signals.load_state_dict(state["signals"])
            if self._cloning is not None and state["cloning"] is not None:
                self._cloning.load_state_dict(state["cloning"])
            if self._critic_memories is not None and state["critic_memories"] is not None:
                self._critic_memories.load_state_dict(state["critic_memories"])
            self._buffer.load_state_dict(state["buffer"])
        restore_random(self._random, state["random"])
        self._step = int(state["step"])
        self._version = int(state["version"])

    def warm_state(self) -> dict[str, Any]:
        """Actor, critic and normaliser."""
        state: dict[str, Any] = {"weights": self._network.state_dict()}
        normalizer = self._intake.normalizer_state()
        return state if normalizer is None else {**state, "normalizer": normalizer}

    def warm_start(self, state: Mapping[str, Any]) -> None:
        """Start from `warm_state()` of another run."""
        with self.context.naming_behavior():
            self._network.load(state["weights"])
            self._intake.load_normalizer(state.get("normalizer"))

    def take_weights(self, tensors: Mapping[str, Any]) -> None:
        """Start from an exported policy: its actor and normaliser. The critic stays as it is."""
        with self.context.naming_behavior():
            self._network.load_acting(tensors)
            self._intake.load_exported_normalizer(tensors)

    def _acting_tensors(self) -> Mapping[str, Array]:
        return self._network.acting_tensors()

    @abstractmethod
    def _make_update(self) -> OnPolicyUpdate[AnyMinibatch]:
        """Make the network, and the update that owns it; design, signals and randomness are there already."""

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

    def _input_rows(
        self, table: ColumnTable, prefix: str = "", previous_actions: NDArray[np.float32] | None = None
    ) -> InputRows:
        """The observations of a table's rows, normalised, as networks take them in."""
        observed = self._intake.layout.from_columns(table.columns(), prefix)
        vectors = self._intake.normalized(observed.vectors)
        return InputRows.of(vectors, observed.others, previous_actions, self.context.device)

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
    ) -> Rollout | SequenceRollout:
        """The buffer's rows to learn from; in sequences if there are cuts.

        Args:
            inputs: the rows.
            per_signal: [N, S] advantages, not normalised.
            returns: [N, S] value targets.
            cuts: the places of the sequences; None without memory.
            critic_memories: [Q, m] the critic's memory before each sequence; None where it has none of its own.
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
        current = current_log_probs(self._update, rollout.in_order(rows_per_pass(self._spec)))
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
        if self._cloning is None:
            return self._update.run(rollout, coefficients, self._random, self._step, after_each)
        with self._update.adam.undone_on_failure():
            losses = self._update.run(rollout, coefficients, self._random, self._step, after_each)
            cloned = self._cloning.update(self._step)
        for name, loss in cloned.items():
            self.context.statistics.add(self.context.behavior, name, loss)
        return losses

    def _report(self, losses: Losses, coefficients: Coefficients, estimates: Mapping[str, NDArray[np.float64]]) -> None:
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
        for estimate, values in estimates.items():
            for signal, mean in zip(self._signals.names, values.mean(axis=0), strict=True):
                add(behavior, f"Policy/{signal.capitalize()} {estimate}", float(mean))

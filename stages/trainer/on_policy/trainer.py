"""What learns from whole buffers of on-policy trajectories, whatever its critic: PPO, and POCA beside it.

Data: `rollout_buffer`; what the update learns from is made of it in a preparation, with the rewards of `signals`; the
update itself: `update`. Where it differs from ML-Agents is told in docs/differences.md: the ratio is of the joint
action, and ready means at least `buffer_size` rows.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from config import OnPolicyHyperparameters
from queues.messages import PolicyUpdate, TrajectoryBatch
from stages.errors import StageError
from stages.policy.design import design_of
from stages.policy.layout import policy_layout
from stages.policy.network.inputs import Inputs
from stages.policy.network.protocol import TrainedActor
from stages.trainer.agent_table import Chains
from stages.trainer.imitation.cloning import ClonedActor, make_cloning
from stages.trainer.intake import Intake
from stages.trainer.on_policy.critic_memories import CriticMemories
from stages.trainer.on_policy.evaluation import rows_per_pass
from stages.trainer.on_policy.minibatch import Epochs, OneMinibatch
from stages.trainer.on_policy.preparation import Prepared
from stages.trainer.on_policy.rollout_buffer import RolloutBuffer
from stages.trainer.on_policy.signals import Signals
from stages.trainer.on_policy.update import Coefficients, Losses
from stages.trainer.on_policy.update import PolicyUpdate as Update
from stages.trainer.protocol import Trainer, TrainerContext
from stages.trainer.randomness import new_random, random_state, restore_random
from stages.trainer.schedules import BETA_FLOOR, EPSILON_FLOOR, LEARNING_RATE_FLOOR, Schedule

log = logging.getLogger(__name__)


class Preparing(Protocol[OneMinibatch]):
    """Makes of a full buffer what the update learns from."""

    critic_memories: CriticMemories | None
    """What the critic remembers from buffer to buffer; None where it remembers nothing of its own."""

    def received(self, buffer: RolloutBuffer) -> NDArray[np.float32]:
        """[N] what the environment gave for each row."""
        ...

    def prepare(
        self, buffer: RolloutBuffer, rewards: NDArray[np.float64], chains: Chains | None
    ) -> Prepared[OneMinibatch]:
        """Ask the critic, and put advantages and returns beside the rows.

        Args:
            buffer: full.
            rewards: [N, S] times strength.
            chains: which trajectory continues which; without memory there may be none.
        """
        ...


@dataclass(frozen=True)
class Parts(Generic[OneMinibatch]):
    """What depends on the critic."""

    network: TrainedActor
    heads: Callable[[Inputs], Tensor]
    """The actor's heads [B, H], for behavioural cloning."""
    update: Update[OneMinibatch]
    preparation: Preparing[OneMinibatch]
    grouped: bool = False
    """Whether the buffer keeps who is in a group with whom."""


class OnPolicyTrainer(Trainer, Generic[OneMinibatch]):
    """Learns one behaviour from whole buffers of on-policy trajectories.

    Attributes:
        hyperparameters: the model of this trainer's.

    Raises:
        StageError: if the behaviour can't be trained so: no actions, an observation that no encoder takes, unusable
            demonstrations.
    """

    hyperparameters: ClassVar[type[OnPolicyHyperparameters]]

    def __init__(self, context: TrainerContext) -> None:
        super().__init__(context)
        settings, spec = context.settings, context.spec
        # A subclass named as `module:Class` gets its hyperparameters as the YAML has them.
        self._hyperparameters = self.hyperparameters.model_validate(settings.hyperparameters)
        _check(context, self._hyperparameters)
        self._spec = spec
        self._random = new_random(context.seed)
        self._design = design_of(spec, settings, context.folder)
        self._memory = settings.network_settings.memory
        self._layout = policy_layout(self._design)
        self._signals = Signals(context)
        self._intake = Intake(spec, settings.network_settings.normalize, bool(self._signals.ignore_termination.any()))
        parts = self._assemble()
        network = self._network = parts.network
        self._update, self._preparation = parts.update, parts.preparation
        actor = ClonedActor(self._design, parts.heads, network.values, network.gradients, network.named_views)
        self._cloning = make_cloning(context, actor, self._intake, self._random)
        follows_agents = self._memory is not None or self._signals.sums is not None
        size = self._hyperparameters.buffer_size
        self._buffer = RolloutBuffer(
            spec, self._intake.layout, size, self._memory, follows_agents, grouped=parts.grouped
        )
        self._block = rows_per_pass(spec)
        self._step = 0
        self._version = 0
        h, steps = self._hyperparameters, settings.max_steps
        self._learning_rate = Schedule(h.learning_rate_schedule, h.learning_rate, LEARNING_RATE_FLOOR, steps)
        self._epsilon = Schedule(h.epsilon_schedule, h.epsilon, EPSILON_FLOOR, steps)
        self._beta = Schedule(h.beta_schedule, h.beta, BETA_FLOOR, steps)

    @property
    def step(self) -> int:
        """Agent steps added so far."""
        return self._step

    @property
    def version(self) -> int:
        """Updates made so far."""
        return self._version

    @property
    def rows_per_update(self) -> int:
        """`buffer_size`."""
        return self._hyperparameters.buffer_size

    def add(self, batch: TrajectoryBatch) -> None:
        """Copy trajectories into the buffer, and update the normalisers.

        Raises:
            NotFiniteError: naming agent, column and step, if what would be trained on is NaN or infinite; the batch is
                then not taken.
        """
        if not batch.num_rows:
            return
        observations, finals = self._intake.take(batch, self._step)
        self._signals.see(observations.vectors)
        self._buffer.append(batch, observations, finals)
        self._step += batch.num_rows

    def ready(self) -> bool:
        """Whether the buffer holds at least `buffer_size` rows."""
        return len(self._buffer) >= self._hyperparameters.buffer_size

    def learn(self) -> int:
        """One update from the whole buffer, which is then empty; returns the rows used.

        Raises:
            NotFiniteError: if a loss became NaN or infinite; weights, optimizer and buffer are then as before.
        """
        coefficients = Coefficients(
            self._learning_rate.at(self._step), self._epsilon.at(self._step), self._beta.at(self._step)
        )
        chains = self._chains()
        transitions = self._signals.transitions(self._buffer, self._intake.layout)
        received = self._preparation.received(self._buffer)
        rewards = self._signals.rewards(self._buffer, transitions, self._block, received)
        prepared = self._preparation.prepare(self._buffer, rewards, chains)
        losses = self._improve(prepared.rollout, coefficients, self._signals.teacher(transitions))
        rows = len(self._buffer)
        self._version += 1
        self._remember(prepared.evaluation.memories_after, chains)
        self._signals.finish(self._buffer, rewards, chains, self._version)
        self._buffer.clear()
        self._report(losses, coefficients, prepared.estimates)
        return rows

    def policy(self) -> PolicyUpdate:
        """The actor's weights and the normaliser's state."""
        weights = self._intake.acting_weights(self._network.acting_tensors(), self._layout)
        return PolicyUpdate(self.context.behavior, self._version, weights, self._layout, self._step)

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer, normaliser, signals, counters, randomness, and the rows that wait in the buffer."""
        normalizer, memories = self._intake.normalizer, self._preparation.critic_memories
        return {
            "step": self._step,
            "version": self._version,
            "weights": self._network.state_dict(),
            "optimizer": self._update.state_dict(),
            "normalizer": None if normalizer is None else normalizer.state_dict(),
            "signals": self._signals.state_dict(),
            "cloning": None if self._cloning is None else self._cloning.state_dict(),
            "critic_memories": None if memories is None else memories.state_dict(),
            "random": random_state(self._random),
            "buffer": self._buffer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`.

        Raises:
            StageError: if the state belongs to another network, other signals or another spec; the message names the
                tensor.
        """
        if (self._cloning is None) != (state["cloning"] is None):
            log.warning(
                "%s: behavioral_cloning %s",
                self.context.behavior,
                "is off now; the run went with it until here" if self._cloning is None else "is new to this run",
            )
        try:
            self._network.load(state["weights"])
            self._update.load_state_dict(state["optimizer"])
            self._intake.load_normalizer(state["normalizer"])
            self._signals.load_state_dict(state["signals"])
            if self._cloning is not None and state["cloning"] is not None:
                self._cloning.load_state_dict(state["cloning"])
            if self._preparation.critic_memories is not None and state["critic_memories"] is not None:
                self._preparation.critic_memories.load_state_dict(state["critic_memories"])
            self._buffer.load_state_dict(state["buffer"])
        except StageError as error:
            raise StageError(f"{self.context.behavior}: {error}") from error
        restore_random(self._random, state["random"])
        self._step = int(state["step"])
        self._version = int(state["version"])

    def warm_state(self) -> dict[str, Any]:
        """Actor, critic and normaliser."""
        normalizer = self._intake.normalizer
        state: dict[str, Any] = {"weights": self._network.state_dict()}
        return state if normalizer is None else {**state, "normalizer": normalizer.state_dict()}

    def warm_start(self, state: Mapping[str, Any]) -> None:
        """Start from `warm_state()` of another run.

        Raises:
            StageError: if it belongs to another network, other signals or another spec; the message names the tensor.
        """
        try:
            self._network.load(state["weights"])
            self._intake.load_normalizer(state.get("normalizer"))
        except StageError as error:
            raise StageError(f"{self.context.behavior}: {error}") from error

    def take_weights(self, tensors: Mapping[str, Any]) -> None:
        """Start from an exported policy: its actor and normaliser. The critic stays as it is.

        Raises:
            StageError: if a tensor does not fit; the message names it.
        """
        try:
            self._network.load_acting(tensors)
            self._intake.take_normalizer(tensors)
        except StageError as error:
            raise StageError(f"{self.context.behavior}: {error}") from error

    @abstractmethod
    def _assemble(self) -> Parts[OneMinibatch]:
        """Make network, update and preparation, of what the constructor has made so far."""

    def _improve(
        self,
        rollout: Epochs[OneMinibatch],
        coefficients: Coefficients,
        beside: Callable[[Tensor], None] | None,
    ) -> Losses:
        """PPO's update, and after it that of behavioural cloning; neither, if one fails."""
        if self._cloning is None:
            return self._update.run(rollout, coefficients, self._random, self._step, beside)
        with self._update.undone_on_failure():
            losses = self._update.run(rollout, coefficients, self._random, self._step, beside)
            cloned = self._cloning.update(self._step)
        for name, loss in cloned.items():
            self.context.statistics.add(self.context.behavior, name, loss)
        return losses

    def _remember(self, memories_after: Tensor | None, chains: Chains | None) -> None:
        memories = self._preparation.critic_memories
        if memories is not None and memories_after is not None and chains is not None:
            memories.keep(self._buffer, memories_after, chains, self._version)

    def _chains(self) -> Chains | None:
        """Which trajectory continues which, where that matters."""
        if self._memory is None and self._signals.sums is None:
            return None
        trajectories = self._buffer.trajectories
        ended = trajectories["terminated"] | trajectories["truncated"]
        return Chains.of(trajectories["agent_ids"], trajectories["episode_ids"], ended)

    def _report(self, losses: Losses, coefficients: Coefficients, estimates: Mapping[str, NDArray[np.float64]]) -> None:
        add, behavior = self.context.statistics.add, self.context.behavior
        add(behavior, "Losses/Policy Loss", losses.policy)
        add(behavior, "Losses/Value Loss", losses.value)
        for name, loss in losses.others.items():
            add(behavior, f"Losses/{name}", loss)
        add(behavior, "Policy/Entropy", losses.entropy)
        add(behavior, "Policy/Learning Rate", coefficients.learning_rate)
        add(behavior, "Policy/Epsilon", coefficients.epsilon)
        add(behavior, "Policy/Beta", coefficients.beta)
        for what, values in estimates.items():
            for signal, mean in zip(self._signals.names, values.mean(axis=0), strict=True):
                add(behavior, f"Policy/{signal.capitalize()} {what}", float(mean))


def _check(context: TrainerContext, hyperparameters: OnPolicyHyperparameters) -> None:
    if not context.spec.actions.log_prob_size:
        raise StageError(f"{context.behavior}: the behaviour has neither continuous nor discrete actions to learn")
    if hyperparameters.buffer_size < hyperparameters.batch_size:
        raise StageError(
            f"{context.behavior}: hyperparameters.buffer_size: {hyperparameters.buffer_size} is smaller than "
            f"batch_size ({hyperparameters.batch_size}); raise buffer_size or lower batch_size"
        )

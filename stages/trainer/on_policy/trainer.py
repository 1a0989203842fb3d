"""The base class of on-policy trainers, which collects full buffers of trajectories; subclasses define the update.

PPO and POCA learn from a buffer in epochs of minibatches, and IMPALA in one gradient step.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.config import ImpalaHyperparameters, OnPolicyHyperparameters
from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.queues.messages import PolicyUpdate, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.design import policy_layout, require_columns
from headrace.stages.policy.network.layers import Inputs
from headrace.stages.policy.observations import EncodedObservations
from headrace.stages.policy.sampling import environment_actions
from headrace.stages.trainer.adam import NetworkUpdate, flushed_denormals
from headrace.stages.trainer.imitation.cloning import ClonedActor, make_cloning
from headrace.stages.trainer.intake import ObservationPreprocessor, Transitions, policy_design, with_group_rewards
from headrace.stages.trainer.on_policy.critic import CriticValues, Floats, rows_per_pass
from headrace.stages.trainer.on_policy.rollout import InputRows, MinibatchSource, RolloutBuffer, arrays_of
from headrace.stages.trainer.protocol import (
    BETA_FLOOR,
    EPSILON_FLOOR,
    LEARNING_RATE_FLOOR,
    Schedule,
    Trainer,
    TrainerContext,
    new_random,
    random_state,
    restore_random,
)
from headrace.stages.trainer.rewards import make_signals, reward_scale
from headrace.stages.trainer.rewards.signal import Extrinsic
from headrace.stages.trainer.trajectories import AgentTable, Chains, add_to_episodes

log = logging.getLogger(__name__)

Settings = TypeVar("Settings", OnPolicyHyperparameters, ImpalaHyperparameters)
Update = TypeVar("Update", bound=NetworkUpdate)


@dataclass(frozen=True, slots=True)
class Coefficients:
    """The hyperparameters with schedules, at their values in one update."""

    learning_rate: float
    beta: float
    """Weight of the entropy bonus, c₂ in PPO's eq. 9."""
    epsilon: float = 0.0
    """Clip range; 0 for an algorithm without clipping."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The rewards that an update learned from, and the update's statistics."""

    rewards: Floats
    """[N, S] rewards of the buffer's rows, times the signals' strengths."""
    statistics: Mapping[str, float]
    """The update's statistics, keyed by name."""


@dataclass(frozen=True)
class PreparedBuffer:
    """A full buffer, prepared for the update."""

    rollout: MinibatchSource
    rewards: Floats
    """[N, S] rewards of the rows, times the signals' strengths."""
    values: CriticValues
    returns: Floats
    """[N, S] value targets of the rows."""
    estimates: Mapping[str, Floats]
    """Estimates [N, S], keyed by name; their means are reported under these names."""


# The reward signals, applied to a full buffer. Axis letters: N rows of K trajectories; S reward signals.


class Signals:
    """A behaviour's S reward signals, in the order of its settings.

    If the environment's reward is the only signal, the other signals' work is skipped.

    Args:
        context: the trainer's context.
        hyperparameters: the trainer's hyperparameters. They are a separate argument because, for a subclass named as
            `module:Class`, the context has them only as plain data.

    Attributes:
        names: [S] the signals' names.
        gammas: [S] the signals' discounts.
        strengths: [S] the factors on the signals' rewards.
        ignore_termination: [S] true if a signal's value continues beyond the end of a terminated episode.
        others: the indices of all signals except the environment's reward.
        sums: for each agent in the middle of an episode, the sums of rewards so far from all signals except the
            environment's; None if there are no other signals.

    Raises:
        StageError: if a signal can't be made.
    """

    def __init__(self, context: TrainerContext, hyperparameters: object) -> None:
        self._context = context
        self._signals = make_signals(context)
        self.names = [signal.name for signal in self._signals]
        self.gammas = np.array([signal.gamma for signal in self._signals])
        self.strengths = np.array([signal.strength for signal in self._signals])
        self.ignore_termination = np.array([signal.ignores_termination for signal in self._signals])
        self.others = [at for at, signal in enumerate(self._signals) if not isinstance(signal, Extrinsic)]
        self.sums = AgentTable(len(self.others), "float64") if self.others else None
        self._losses: dict[str, list[float]] = {}
        self.scale = reward_scale(self._signals, hyperparameters)
        """Scales the environment's rewards; None if they are not scaled."""

    @property
    def follows_agents(self) -> bool:
        """True if the signals need each agent's data from its earlier trajectories."""
        return self.sums is not None or self.scale is not None

    def observe(self, vectors: NDArray[np.float32]) -> None:
        """Pass the vector observations [n, V] of new steps to all signals except the environment's reward."""
        for at in self.others:
            self._signals[at].observe(vectors)

    def transitions(self, buffer: RolloutBuffer) -> BufferTransitions:
        """Return a full buffer's rows in the signals' form; only needed if there are other signals."""
        return BufferTransitions(self._context.spec, buffer, self._context.device)

    def rewards(self, extrinsic: NDArray[np.float32], transitions: BufferTransitions | None) -> NDArray[np.float64]:
        """Return the rewards [N, S] of all rows, times the signals' strengths.

        Args:
            extrinsic: [N] the environment's rewards.
            transitions: the result of `transitions()` for the same rows.

        Raises:
            NotFiniteError: if a reward is NaN or infinite.
        """
        own = extrinsic.astype(np.float64) if self.scale is None else self.scale.apply(extrinsic)
        rewards: NDArray[np.float64] = own[:, None] * self.strengths
        if transitions is None:
            return rewards
        block = rows_per_pass(self._context.spec)
        for start in range(0, len(rewards), block):
            rows = np.arange(start, min(start + block, len(rewards)))
            some = transitions.take(rows)
            for at in self.others:
                rewards[rows, at] = self._signals[at].rewards(some) * self.strengths[at]
        return rewards

    def learner(self, transitions: BufferTransitions) -> Callable[[Tensor], None]:
        """Return a function that trains the signals on given rows."""
        self._losses = {}

        def learn(rows: Tensor) -> None:
            some = transitions.take(rows.numpy())
            for at in self.others:
                for name, loss in self._signals[at].learn(some).items():
                    self._losses.setdefault(name, []).append(loss)

        return learn

    def report(self, buffer: RolloutBuffer, rewards: NDArray[np.float64], chains: Chains, update: int) -> None:
        """Report the signals' losses, and the sums of rewards over the episodes that ended in the buffer.

        Args:
            buffer: the rows that were learned from.
            rewards: [N, S] the rewards of these rows.
            chains: which trajectory continues which.
            update: the update's number, ascending.
        """
        assert self.sums is not None, "only called if there are other signals"
        add, extend, behavior = self._context.statistics.add, self._context.statistics.extend, self._context.behavior
        for name, losses in self._losses.items():
            add(behavior, name, float(np.mean(losses)))
        trajectories = buffer.trajectories
        lengths = trajectories["lengths"]
        finished = add_to_episodes(
            self.sums,
            trajectories["agent_ids"],
            trajectories["episode_ids"],
            buffer.ended,
            np.add.reduceat(rewards[:, self.others], np.cumsum(lengths) - lengths),
            update,
            chains,
        )
        for column, at in enumerate(self.others):
            if len(finished):
                extend(behavior, f"Policy/{self.names[at].capitalize()} Reward", finished[:, column].tolist(), "mean")

    def value_statistics(self, estimates: Mapping[str, Floats], values: Floats, targets: Floats) -> dict[str, float]:
        """Return statistics of the critic's named estimates [N, S], and of its values and value targets [N, S]."""
        statistics = dict[str, float]()
        explained = explained_variances(values, targets).tolist()
        for at, name in enumerate(self.names):
            for estimate, of_rows in estimates.items():
                statistics[f"Policy/{name.capitalize()} {estimate}"] = float(of_rows[:, at].mean())
            if isfinite(explained[at]):  # if targets are constant, there is no variance to explain
                statistics[f"Policy/{name.capitalize()} Explained Variance"] = explained[at]
        return statistics

    def state_dict(self) -> dict[str, Any]:
        """Return the signals' states, keyed by name, and the running sums."""
        return {
            "signals": {signal.name: signal.state_dict() for signal in self._signals},
            "sums": None if self.sums is None else self.sums.state_dict(),
            "scale": None if self.scale is None else self.scale.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`.

        Raises:
            StageError: if the state belongs to different signals or networks; the message names the tensor.
        """
        found = state["signals"]
        if set(found) != set(self.names):
            raise StageError(
                f"reward_signals: the saved state was made with {', '.join(sorted(found))}, but the configuration has "
                f"{', '.join(sorted(self.names))}; a resumed run needs the same signals"
            )
        for signal in self._signals:
            signal.load_state_dict(found[signal.name])
        if self.sums is not None:
            self.sums.load_state_dict(state["sums"])
        if self.scale is not None and (scale := state.get("scale")) is not None:
            self.scale.load_state_dict(scale)


class BufferTransitions:
    """A buffer's rows in the form that reward signals take: not normalised, with each row's next observation.

    Args:
        spec: observations and actions.
        buffer: a full buffer, which must not change while this object is in use.
        device: the device that signals compute on.
    """

    def __init__(self, spec: BehaviorSpec, buffer: RolloutBuffer, device: str) -> None:
        rows, trajectories = buffer.rows, buffer.trajectories
        self._device = device
        self._observations, self._finals = buffer.observations(), buffer.final_observations()
        lengths = trajectories["lengths"]
        self._trajectory = np.full(len(rows), -1, np.int64)  # index of the trajectory that ends with the row
        self._trajectory[np.cumsum(lengths) - 1] = np.arange(len(lengths))
        drawn, choices = buffer.actions()
        self._continuous = environment_actions(spec.actions, drawn, buffer.squashed)
        self._choices = choices.astype(np.int64)
        self._rewards = rows["rewards"]
        self._ended = trajectories["terminated"]

    def __len__(self) -> int:
        return len(self._rewards)

    def take(self, rows: NDArray[np.int64]) -> Transitions:
        """Return the transitions for the selected rows."""
        trajectory = self._trajectory[rows]
        last = np.flatnonzero(trajectory >= 0)
        finals = trajectory[last]
        terminated = np.zeros(len(rows), np.float32)
        terminated[last] = self._ended[finals]
        following = np.minimum(rows + 1, len(self) - 1)
        next_arrays = []
        for row, final in zip(arrays_of(self._observations), arrays_of(self._finals), strict=True):
            array = row[following]
            array[last] = final[finals]
            next_arrays.append(array)
        vectors, *others = next_arrays
        here, *seen = (array[rows] for array in arrays_of(self._observations))
        return Transitions(
            Inputs.from_encoded(EncodedObservations(here, tuple(seen)), self._device),
            Inputs.from_encoded(EncodedObservations(vectors, tuple(others)), self._device),
            *(
                torch.from_numpy(array).to(self._device)
                for array in (self._continuous[rows], self._choices[rows], self._rewards[rows], terminated)
            ),
        )


def explained_variances(values: Floats, targets: Floats) -> Floats:
    """Return 1 - Var(target - value) / Var(target) [S] for values and targets [N, S]; NaN if the targets do not vary.

    The result is 1 for a perfect critic, 0 for a critic that predicts the mean, and negative for a worse critic.
    """
    spread = targets.var(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(spread > 0, 1.0 - (targets - values).var(axis=0) / spread, np.nan)


# The trainer.


class OnPolicyTrainer(Trainer, Generic[Settings, Update]):
    """Collects the trajectories of one behaviour, and learns from `rows_per_update` rows at a time.

    Raises:
        StageError: if the behaviour can't be trained: it has no actions, an observation has no suitable encoder, or the
            demonstrations are unusable.
    """

    hyperparameters: ClassVar[type[OnPolicyHyperparameters] | type[ImpalaHyperparameters]]
    """Pydantic model that validates this trainer's hyperparameters."""
    follows_groups: ClassVar[bool] = False
    """True if the buffer keeps each group's members; otherwise, the group's reward is added to each member's own."""

    step = 0
    """Number of agent steps added so far."""
    version = 0
    """Number of calls to `learn` so far."""
    rows_per_update = 0
    """Number of rows that an update learns from: `buffer_size`, or for IMPALA the number of fresh rows."""

    def __init__(self, context: TrainerContext) -> None:
        super().__init__(context)
        settings, spec = context.settings, context.spec
        self._spec = spec
        self._design = policy_design(context)
        self.squashed = self._design.squashed
        self._layout = policy_layout(self._design)
        self._asked_columns = self._design.asked_columns
        self._random = new_random(context.seed)
        # A subclass named as `module:Class` gets its hyperparameters unchanged from the YAML.
        self._hyperparameters: Settings = self.hyperparameters.model_validate(settings.hyperparameters)  # type: ignore[assignment]
        self.rows_per_update = self._hyperparameters.rows_per_update
        self._entropies = self._count_entropies()
        """Factor on the mean entropy of continuous actions: their number if entropies are summed, else 1."""
        self._memory = settings.network_settings.memory
        self._signals = Signals(context, self._hyperparameters)
        self._intake = ObservationPreprocessor(
            spec, settings.network_settings.normalize, bool(self._signals.ignore_termination.any())
        )
        self._images = self._image_numbers()
        self._update: Update = context.accelerate(self._make_update(), context, self._design)
        network, h = self._update.network, self._hyperparameters
        self._network = network
        actor = ClonedActor(self._design, self._update.heads, network)
        self._cloning = make_cloning(context, actor, h.learning_rate, h.batch_rows, self._intake, self._random)
        self._buffer = self._make_buffer()
        self._rows_per_pass = rows_per_pass(spec)
        self._kept: dict[str, AgentTable | None] = {}
        """Tables of values for agents in the middle of an episode, keyed by their names in checkpoints; None for an
        unused table."""

    @property
    def corrects_age(self) -> bool:
        """True if updates correct for the age of rows: with a decoupled clip or, in IMPALA, with V-trace."""
        h = self._hyperparameters
        return isinstance(h, ImpalaHyperparameters) or h.decoupled

    def add(self, batch: TrajectoryBatch) -> None:
        """Add copies of trajectories to the buffer, and update the normalisers."""
        if not batch.num_rows:
            return
        if "group_rewards" in batch.rows and not self.follows_groups:
            batch = with_group_rewards(batch)
        if self._asked_columns:  # check again, because a subclass may have changed its settings
            require_columns(batch, self._asked_columns)
        observations, finals = self._intake.encode(batch, self.step)
        if self._signals.others:
            self._signals.observe(observations.vectors)
        self._buffer.append(batch, observations, finals)
        self.step += batch.num_rows

    def ready(self) -> bool:
        """Return True if the buffer holds enough rows for an update."""
        return len(self._buffer) >= self.rows_per_update

    @flushed_denormals()
    def learn(self) -> int:
        """Make one update from `rows_per_update` rows; return their number. Additional rows wait for the next update.

        With groups, an update may have a few more rows; see `headrace.stages.trainer.trajectories`.

        Raises:
            NotFiniteError: if a loss becomes NaN or infinite; weights, optimizer, buffer and replay are then unchanged.
        """
        buffer, rows = self._buffer, len(self._buffer)
        chains = buffer.chains() if buffer.follows_agents else None
        if self._signals.scale is not None:
            of_agents = buffer.trajectories["agent_ids"], buffer.trajectories["episode_ids"], buffer.ended
            rewards, lengths = self._extrinsic_rewards(), buffer.trajectories["lengths"]
            self._signals.scale.see(rewards, lengths, *of_agents, self.version + 1, chains)
        with self._update.adam.undone_on_failure():
            outcome = self._learn(chains)
        self.version += 1
        if self._signals.others and chains is not None:
            self._signals.report(buffer, outcome.rewards, chains, self.version)
        buffer.clear()
        for name, value in outcome.statistics.items():
            self.context.statistics.add(self.context.behavior, name, value)
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimizer, normaliser, signals, counters, random state, and the rows in the buffer."""
        return {
            "step": self.step,
            "version": self.version,
            "weights": self._network.state_dict(),
            "optimizer": self._update.state_dict(),
            "normalizer": self._intake.normalizer_state(),
            "signals": self._signals.state_dict(),
            "cloning": None if self._cloning is None else self._cloning.state_dict(),
            "random": random_state(self._random),
            "buffer": self._buffer.state_dict(),
            **{name: None if table is None else table.state_dict() for name, table in self._kept.items()},
        }

    def set_hyperparameter(self, name: str, value: float) -> None:
        """Set the value, with effect from the next update."""
        self._hyperparameters = self._hyperparameters.with_value(name, value)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`."""
        if (self._cloning is None) != (state["cloning"] is None):
            log.warning(
                "%s: behavioral_cloning %s",
                self.context.behavior,
                "is now off; it was on until this checkpoint"
                if self._cloning is None
                else "is now on; it was off until this checkpoint",
            )
        with self.context.naming_behavior():
            self._network.load(state["weights"])
            self._update.load_state_dict(state["optimizer"])
            self._intake.load_normalizer(state["normalizer"])
            self._signals.load_state_dict(state["signals"])
            if self._cloning is not None and state["cloning"] is not None:
                self._cloning.load_state_dict(state["cloning"])
            self._buffer.load_state_dict(state["buffer"])
            for name, table in self._kept.items():
                if table is not None and state[name] is not None:
                    table.load_state_dict(state[name])
        restore_random(self._random, state["random"])
        self.step = int(state["step"])
        self.version = int(state["version"])

    def parameter_counts(self) -> Mapping[str, int]:
        """Return the numbers of parameters of actor and critic; shared layers count towards the actor."""
        acting = int(self._network.acting.sum())
        return {"actor": acting, "critic": self._network.values.numel() - acting}

    def warm_state(self) -> dict[str, Any]:
        """Return actor, critic and normaliser."""
        state: dict[str, Any] = {"weights": self._network.state_dict()}
        normalizer = self._intake.normalizer_state()
        return state if normalizer is None else {**state, "normalizer": normalizer}

    def warm_start(self, state: Mapping[str, Any]) -> None:
        """Start from another run's `warm_state()`."""
        with self.context.naming_behavior():
            self._network.load(state["weights"])
            self._intake.load_normalizer(state.get("normalizer"))

    def take_weights(self, tensors: Mapping[str, Any]) -> None:
        """Start from an exported policy's actor and normaliser. The critic does not change."""
        with self.context.naming_behavior():
            self._network.load_acting(tensors)
            self._intake.load_exported_normalizer(tensors)

    def policy(self) -> PolicyUpdate:
        """Return a policy with the actor's weights and the normaliser's state."""
        return self._intake.policy(self, self._network.acting_views, self._layout)

    @abstractmethod
    def _make_update(self) -> Update:
        """Make the network and the update that owns it, readable and not accelerated.

        The design, signals and random generator already exist.
        """

    @abstractmethod
    def _learn(self, chains: Chains | None) -> Outcome:
        """Make an update from the buffer. If this raises `NotFiniteError`, weights and optimizer are restored.

        Args:
            chains: which trajectory continues which; None if the buffer does not follow agents.
        """

    def _extrinsic_rewards(self) -> NDArray[np.float32]:
        """Return the environment's rewards [N] for the buffer's rows, in the form that the trainer learns from."""
        rewards: NDArray[np.float32] = self._buffer.rows["rewards"]
        return rewards

    def _make_buffer(self) -> RolloutBuffer:
        follows_agents = self._memory is not None or self._signals.follows_agents
        sizes = self._intake.layout, self.rows_per_update, self._memory
        grouped = self.follows_groups and self._spec.grouped
        return RolloutBuffer(self._spec, *sizes, follows_agents, grouped=grouped, squashed=self.squashed)

    def _count_entropies(self) -> int:
        actions = self._spec.actions
        if not (getattr(self._hyperparameters, "summed_entropy", False) and actions.continuous_size):
            return 1
        if actions.discrete_branches:
            raise StageError(
                f"{self.context.behavior}: hyperparameters.summed_entropy does not work if there are both continuous "
                "and discrete actions: remove it, and raise beta"
            )
        return actions.continuous_size

    def _coefficients(self) -> Coefficients:
        h, steps, epsilon = self._hyperparameters, self.context.settings.max_steps, 0.0
        if not isinstance(h, ImpalaHyperparameters):
            epsilon = Schedule(h.epsilon_schedule, h.epsilon, EPSILON_FLOOR, steps).at(self.step)
        return Coefficients(
            Schedule(h.learning_rate_schedule, h.learning_rate, LEARNING_RATE_FLOOR, steps).at(self.step),
            Schedule(h.beta_schedule, h.beta, BETA_FLOOR, steps).at(self.step) * self._entropies,
            epsilon,
        )

    def _input_rows(
        self, observed: EncodedObservations, previous_actions: NDArray[np.float32] | None = None
    ) -> InputRows:
        """Return the buffer's observations, normalised, as network inputs."""
        vectors = observed.vectors.astype(np.float32, copy=False)
        if self._intake.normalizer is not None:
            vectors = self._intake.normalizer.apply(observed.vectors)
        return InputRows.of(vectors, observed.others, previous_actions, self.context.device, self._images)

    def _image_numbers(self) -> list[int]:
        """Return the indices of channels-first images among non-vector inputs; an empty list for a custom network."""
        if self._design.settings.network is not None:
            return []
        others = [self._spec.observations[index] for index in self._intake.layout.others]
        return [
            number for number, one in enumerate(others) if OBSERVATION_KINDS[one.kind].pixels and not one.channels_last
        ]

    def _clone(self) -> None:
        """Run one update's cloning passes over the demonstrations."""
        assert self._cloning is not None, "called only if there are any"
        for name, loss in self._cloning.update(self.step).items():
            self.context.statistics.add(self.context.behavior, name, loss)

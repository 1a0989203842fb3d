"""The trainer that collects full buffers of trajectories, and their rewards; how it learns from them is a subclass's.

PPO and POCA make epochs of minibatches of a buffer, IMPALA one gradient step.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headrace.config import ImpalaHyperparameters, OnPolicyHyperparameters
from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.queues.messages import PolicyUpdate, TrajectoryBatch
from headrace.stages.errors import StageError
from headrace.stages.policy.design import policy_layout, require_columns
from headrace.stages.policy.network.actor_critic import ActorCritic, ActorTower
from headrace.stages.policy.network.protocol import ActorCriticNetwork, Perceptrons
from headrace.stages.policy.observations import EncodedObservations
from headrace.stages.trainer.adam import NetworkUpdate
from headrace.stages.trainer.agent_table import AgentTable, Chains, add_to_episodes
from headrace.stages.trainer.gradients import say_autograd
from headrace.stages.trainer.imitation.cloning import ClonedActor, make_cloning
from headrace.stages.trainer.intake import Intake, policy_design
from headrace.stages.trainer.on_policy.minibatches import InputRows
from headrace.stages.trainer.on_policy.rollout_buffer import BufferTransitions, RolloutBuffer
from headrace.stages.trainer.on_policy.values import rows_per_pass
from headrace.stages.trainer.protocol import Trainer, TrainerContext, new_random, random_state, restore_random
from headrace.stages.trainer.rewards import make_signals
from headrace.stages.trainer.rewards.signal import Extrinsic

log = logging.getLogger(__name__)

Settings = TypeVar("Settings", OnPolicyHyperparameters, ImpalaHyperparameters)
Update = TypeVar("Update", bound=NetworkUpdate)


class Signals:
    """All S reward signals of a behaviour, in the order of its settings.

    With the environment's own reward alone, nothing of this costs anything.

    Attributes:
        names: [S]
        gammas: [S] discounts.
        strengths: [S] factors on rewards.
        ignore_termination: [S] true where a signal's value goes on beyond the end of an episode that terminated.
        sums: the rewards so far, by all signals but the environment's, of each agent in the middle of an episode; None
            if there are no others.

    Raises:
        StageError: if a signal can't be made.
    """

    def __init__(self, context: TrainerContext) -> None:
        self._context = context
        self._signals = make_signals(context)
        self.names = [signal.name for signal in self._signals]
        self.gammas = np.array([signal.gamma for signal in self._signals])
        self.strengths = np.array([signal.strength for signal in self._signals])
        self.ignore_termination = np.array([signal.ignores_termination for signal in self._signals])
        self._others = [at for at, signal in enumerate(self._signals) if not isinstance(signal, Extrinsic)]
        self.sums = AgentTable(len(self._others), "float64") if self._others else None
        self._losses: dict[str, list[float]] = {}

    def observe(self, vectors: NDArray[np.float32]) -> None:
        """Show all signals the vector observations [n, V] of new steps."""
        for signal in self._signals:
            signal.observe(vectors)

    def transitions(self, buffer: RolloutBuffer) -> BufferTransitions | None:
        """The rows of a full buffer as signals take them in; None if there is only the environment's reward."""
        if not self._others:
            return None
        return BufferTransitions(self._context.spec, buffer, self._context.device)

    def rewards(self, extrinsic: NDArray[np.float32], transitions: BufferTransitions | None) -> NDArray[np.float64]:
        """Rewards [N, S] of all rows, times strength.

        Args:
            extrinsic: [N] the environment's.
            transitions: `transitions()` of the same rows.

        Raises:
            NotFiniteError: if one is NaN or infinite.
        """
        rewards: NDArray[np.float64] = extrinsic.astype(np.float64)[:, None] * self.strengths
        if transitions is None:
            return rewards
        block = rows_per_pass(self._context.spec)
        for start in range(0, len(rewards), block):
            rows = np.arange(start, min(start + block, len(rewards)))
            some = transitions.take(rows)
            for at in self._others:
                rewards[rows, at] = self._signals[at].rewards(some) * self.strengths[at]
        return rewards

    def learner(self, transitions: BufferTransitions | None) -> Callable[[Tensor], None] | None:
        """A function that lets the signals learn from some of the rows; None if there is nothing to learn."""
        if transitions is None:
            return None
        self._losses = {}

        def learn(rows: Tensor) -> None:
            some = transitions.take(rows.numpy())
            for at in self._others:
                for name, loss in self._signals[at].learn(some).items():
                    self._losses.setdefault(name, []).append(loss)

        return learn

    def report(self, buffer: RolloutBuffer, rewards: NDArray[np.float64], chains: Chains | None, update: int) -> None:
        """Report losses, and the sums of rewards over episodes that ended in the buffer.

        Args:
            buffer: the rows that were learned from.
            rewards: [N, S] of these rows.
            chains: which trajectory continues which.
            update: number of the update, rising.
        """
        if self.sums is None or chains is None:
            return
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
            np.add.reduceat(rewards[:, self._others], np.cumsum(lengths) - lengths),
            update,
            chains,
        )
        for column, at in enumerate(self._others):
            if len(finished):
                extend(behavior, f"Policy/{self.names[at].capitalize()} Reward", finished[:, column].tolist(), "mean")

    def state_dict(self) -> dict[str, Any]:
        """The signals' states by name, and the running sums."""
        return {
            "signals": {signal.name: signal.state_dict() for signal in self._signals},
            "sums": None if self.sums is None else self.sums.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`.

        Raises:
            StageError: if it belongs to other signals, or other networks; the message names the tensor.
        """
        found = state["signals"]
        if set(found) != set(self.names):
            raise StageError(
                f"reward_signals: the saved state was made with {', '.join(sorted(found))}, "
                f"but now there are {', '.join(sorted(self.names))}; a resumed run needs the same"
            )
        for signal in self._signals:
            signal.load_state_dict(found[signal.name])
        if self.sums is not None:
            self.sums.load_state_dict(state["sums"])


class OnPolicyTrainer(Trainer, Generic[Settings, Update]):
    """Collects the trajectories of one behaviour, and learns from `rows_per_update` rows at a time.

    Raises:
        StageError: if the behaviour can't be trained so: no actions, an observation that no encoder accepts, unusable
            demonstrations.
    """

    hyperparameters: ClassVar[type[OnPolicyHyperparameters] | type[ImpalaHyperparameters]]
    """The model of this trainer's hyperparameters."""

    step = 0
    """Agent steps added so far."""
    version = 0
    """Calls of `learn` so far."""

    def __init__(self, context: TrainerContext) -> None:
        super().__init__(context)
        settings, spec = context.settings, context.spec
        self._spec = spec
        self._design = policy_design(context)
        self._layout = policy_layout(self._design)
        self._random = new_random(context.seed)
        # A subclass named as `module:Class` gets its hyperparameters as the YAML has them.
        self._hyperparameters: Settings = self.hyperparameters.model_validate(settings.hyperparameters)  # type: ignore[assignment]
        self._memory = settings.network_settings.memory
        self._signals = Signals(context)
        self._intake = Intake(spec, settings.network_settings.normalize, bool(self._signals.ignore_termination.any()))
        self._images = self._image_numbers()
        self._update = self._make_update()
        network, h = self._update.network, self._hyperparameters
        self._network = network
        actor = ClonedActor(self._design, self._update.heads, network.values, network.gradients, network.named_views)
        self._cloning = make_cloning(context, actor, h.learning_rate, h.batch_rows, self._intake, self._random)
        self._buffer = self._make_buffer()

    def add(self, batch: TrajectoryBatch) -> None:
        """Copy trajectories into the buffer, and update the normalisers."""
        if not batch.num_rows:
            return
        require_columns(batch, self._design.asked_columns)  # a derived class may have changed its settings
        observations, finals = self._intake.encode(batch, self.step)
        self._signals.observe(observations.vectors)
        self._buffer.append(batch, observations, finals)
        self.step += batch.num_rows

    def ready(self) -> bool:
        """Return True if the buffer holds the rows of an update."""
        return len(self._buffer) >= self.rows_per_update

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer, normaliser, signals, counters, randomness, and the rows that wait in the buffer."""
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
        }

    def set_hyperparameter(self, name: str, value: float) -> None:
        """Use another value from the next update on."""
        self._hyperparameters = self._hyperparameters.with_value(name, value)

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
            self._buffer.load_state_dict(state["buffer"])
        restore_random(self._random, state["random"])
        self.step = int(state["step"])
        self.version = int(state["version"])

    def parameter_counts(self) -> Mapping[str, int]:
        """Actor and critic; layers that they share are the actor's."""
        acting = int(self._network.acting.sum())
        return {"actor": acting, "critic": self._network.values.numel() - acting}

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

    def policy(self) -> PolicyUpdate:
        """The actor's weights and the normaliser's state."""
        return self._intake.policy(self, self._network.acting_tensors(), self._layout)

    def _perceptrons(
        self, network: ActorCriticNetwork | ActorTower | None, what: str = "its network is more than perceptrons"
    ) -> Perceptrons | None:
        """Return the network if its gradients are to be found by hand; else say why they are not.

        Args:
            network: of a kind whose gradients can be found by hand, or any other.
            what: is said of one of another kind.
        """
        device = self.context.device.partition(":")[0]
        if self.context.autograd:
            why = "torch_settings.gradients says so"
        elif not isinstance(network, (ActorCritic, ActorTower)):
            why = f"{what} over vectors"
        elif device != "cpu":
            why = f"it learns on {device}"
        else:
            return network
        say_autograd(self.context, why)
        return None

    @abstractmethod
    def _make_update(self) -> Update:
        """Make the network, and the update that owns it; design, signals and randomness are there already."""

    @abstractmethod
    def _make_buffer(self) -> RolloutBuffer:
        """Make the empty buffer; all else is there already."""

    def _input_rows(
        self, observed: EncodedObservations, previous_actions: NDArray[np.float32] | None = None
    ) -> InputRows:
        """Observations of the buffer, normalised, as networks take them in."""
        vectors = self._intake.normalized(observed.vectors)
        return InputRows.of(vectors, observed.others, previous_actions, self.context.device, self._images)

    def _image_numbers(self) -> list[int]:
        """Which of the inputs beside vectors are images with the channels first, for encoders of ours."""
        if self._design.settings.network is not None:
            return []
        others = [self._spec.observations[index] for index in self._intake.layout.others]
        return [
            number for number, one in enumerate(others) if OBSERVATION_KINDS[one.kind].pixels and not one.channels_last
        ]

    def _clone(self) -> None:
        """Imitate the demonstrations for one update, if there are any."""
        if self._cloning is None:
            return
        for name, loss in self._cloning.update(self.step).items():
            self.context.statistics.add(self.context.behavior, name, loss)

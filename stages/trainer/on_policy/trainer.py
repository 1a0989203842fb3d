"""The base class of on-policy trainers, which collects full buffers of trajectories; subclasses define the update.

PPO and POCA learn from a buffer in epochs of minibatches, and IMPALA in one gradient step. In order: the trainer, the
reward signals, the buffer, and recursions over its trajectories.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.config import ImpalaHyperparameters, MemorySettings, OnPolicyHyperparameters
from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.queues.columns import GROUP_ROW_COLUMNS, GROUP_TRAJECTORY_COLUMNS, Column, action_columns, memory_column
from headrace.queues.messages import Array, Columns, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import StageError
from headrace.stages.policy.design import require_columns
from headrace.stages.policy.network.layers import Inputs, gathered, to_device
from headrace.stages.policy.observations import EncodedObservations, ObservationLayout
from headrace.stages.policy.sampling import action_features, environment_actions
from headrace.stages.trainer.adam import NetworkUpdate, flushed_denormals
from headrace.stages.trainer.imitation.cloning import BehavioralCloning, ClonedActor
from headrace.stages.trainer.intake import (
    BuiltInTrainer,
    ObservationPreprocessor,
    Transitions,
    drawn_actions,
    with_group_rewards,
)
from headrace.stages.trainer.protocol import (
    BETA_FLOOR,
    EPSILON_FLOOR,
    LEARNING_RATE_FLOOR,
    Schedule,
    TrainerContext,
)
from headrace.stages.trainer.rewards.signal import Signals
from headrace.stages.trainer.trajectories import (
    Chains,
    SequenceCuts,
    cut_every,
    moments_within,
    rows_within,
    split,
)

Floats = NDArray[np.float64]
Settings = TypeVar("Settings", OnPolicyHyperparameters, ImpalaHyperparameters)
Update = TypeVar("Update", bound=NetworkUpdate)

_ROWS = 512
"""Number of rows per forward pass. It limits memory use, and the rows fit the processor's cache."""
_ELEMENTS = 2**22
"""Number of elements of images and sets per forward pass, because their encoders need many times as much memory."""
_FEWEST_ROWS = 16
_OPTIONAL = ("continuous_actions", "discrete_actions", "action_masks")
"""Row columns that have width 0 in a buffer if the behaviour has no such actions or masks."""


@dataclass(frozen=True, slots=True)
class Coefficients:
    """The hyperparameters with schedules, at their values in one update."""

    learning_rate: float
    beta: float
    """Weight of the entropy bonus, c₂ in PPO's eq. 9."""
    epsilon: float = 0.0
    """Clip range; 0 for an algorithm without clipping."""


class OnPolicyTrainer(BuiltInTrainer[Settings], Generic[Settings, Update]):
    """Collects the trajectories of one behaviour, and learns from `rows_per_update` rows at a time.

    Raises:
        StageError: if the behaviour can't be trained: it has no actions, an observation has no suitable encoder, or the
            demonstrations are unusable.
    """

    follows_groups: ClassVar[bool] = False
    """True if the buffer keeps each group's members; otherwise, the group's reward is added to each member's own."""

    rows_per_update = 0
    """Number of rows that an update learns from: `buffer_size`, or for IMPALA the number of fresh rows."""

    def __init__(self, context: TrainerContext) -> None:
        super().__init__(context)
        settings, spec = context.settings, context.spec
        self._spec = spec
        self.squashed = self._design.squashed
        self._asked_columns = self._design.asked_columns
        self.rows_per_update = self._hyperparameters.rows_per_update
        self._entropies = self._count_entropies()
        """Factor on the mean entropy of continuous actions: their number if entropies are summed, else 1."""
        self._memory = settings.network_settings.memory
        self._signals = BufferSignals(context, self._hyperparameters)
        self._intake = ObservationPreprocessor(
            spec, settings.network_settings.normalize, bool(self._signals.ignore_termination.any())
        )
        self._images: list[int] = []
        """Indices of channels-first images among non-vector inputs; empty for a custom network."""
        if self._design.settings.network is None:
            others = [spec.observations[index] for index in self._intake.layout.others]
            pixels = [OBSERVATION_KINDS[one.kind].pixels and not one.channels_last for one in others]
            self._images = np.flatnonzero(pixels).tolist()
        self._update: Update = context.accelerate(self._make_update(), context, self._design)
        network, h = self._update.network, self._hyperparameters
        self._network, self._acting_views = network, network.acting_views
        self._cloning: BehavioralCloning | None = None
        if settings.behavioral_cloning is not None:
            actor, rate = ClonedActor(self._design, self._update.heads, network), h.learning_rate
            self._cloning = BehavioralCloning(context, actor, rate, h.batch_rows, self._intake, self._random)
        self._buffer = self._make_buffer()
        self._rows_per_pass = rows_per_pass(spec)
        self._parts = {"optimizer": self._update, "signals": self._signals, "cloning": self._cloning}
        self._parts["buffer"] = self._buffer

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
        rows = len(self._buffer)
        with self._update.adam.undone_on_failure():
            rewards, statistics = self._learn()
        self.version += 1
        if self._signals.others:
            self._signals.report(self._buffer, rewards, self.version)
        self._buffer.clear()
        add = self.context.statistics.add
        for name, value in statistics.items():
            add(self.context.behavior, name, value)
        add(self.context.behavior, "Policy/Gradient Steps", float(self._update.adam.steps), "last")
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimizer, normaliser, signals, counters, random state, and the rows in the buffer."""
        return {**super().state_dict(), **self.warm_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`."""
        self.warm_start(state)
        super().load_state_dict(state)

    def parameter_counts(self) -> Mapping[str, int]:
        """Return the numbers of parameters of actor and critic; shared layers count towards the actor."""
        acting = int(self._update.network.acting.sum())
        return {"actor": acting, "critic": self._network.values.numel() - acting}

    @abstractmethod
    def _make_update(self) -> Update:
        """Make the network and the update that owns it, readable and not accelerated.

        The design, signals and random generator already exist.
        """

    @abstractmethod
    def _learn(self) -> tuple[Floats, Mapping[str, float]]:
        """Make an update from the buffer. If this raises `NotFiniteError`, weights and optimizer are restored.

        Returns:
            The rewards [N, S] of the buffer's rows, times the signals' strengths; the update's statistics by name.
        """

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

    def _input_rows(self, observed: EncodedObservations, previous_actions: Array | None = None) -> Inputs:
        """Return the buffer's observations, normalised, as network inputs; images and sets remain on the host.

        Args:
            observed: N rows' observations, not normalised. The inputs share their memory if the device allows it.
            previous_actions: [N, P] features of the previous actions; None without memory.
        """
        device, vectors = self.context.device, observed.vectors.astype(np.float32, copy=False)
        if self._intake.normalizer is not None:
            vectors = self._intake.normalizer.apply(observed.vectors)
        others = list(map(torch.from_numpy, observed.others))
        if device == "cpu":
            # Convolutions need this memory format, so images are converted here, once, instead of in each pass.
            for number in self._images:
                others[number] = others[number].contiguous(memory_format=torch.channels_last)
        previous = None if previous_actions is None else to_device(torch.from_numpy(previous_actions), device)
        return Inputs(to_device(torch.from_numpy(vectors), device), tuple(others), previous)


def rows_per_pass(spec: BehaviorSpec) -> int:
    """Return the number of a behaviour's rows to evaluate in one forward pass without gradients."""
    encoded = (one for one in spec.observations if not OBSERVATION_KINDS[one.kind].flat)
    elements = sum(observation.size for observation in encoded)
    return max(_FEWEST_ROWS, min(_ROWS, _ELEMENTS // max(1, elements)))


# The reward signals, applied to a full buffer. Axis letters: N rows of K trajectories; S reward signals.


class BufferSignals(Signals):
    """A behaviour's S reward signals, applied to an on-policy trainer's buffer.

    If the environment's reward is the only signal, the other signals' work is skipped.
    """

    def __init__(self, context: TrainerContext, hyperparameters: object) -> None:
        super().__init__(context, hyperparameters)
        self._losses: dict[str, list[float]] = {}
        self._transitions: BufferTransitions | None = None

    @property
    def follows_agents(self) -> bool:
        """True if the signals need each agent's data from its earlier trajectories."""
        return self.sums is not None or self.scale is not None

    def rewards(
        self, extrinsic: NDArray[np.float32], buffer: RolloutBuffer, update: int, fresh: RolloutBuffer | None = None
    ) -> Floats:
        """Return the rewards [N, S] of all rows, times the signals' strengths.

        Args:
            extrinsic: [N] the environment's rewards.
            buffer: the rows; it must not change until the signals have learned from them.
            update: the update's number, ascending.
            fresh: the first rows, which the signals have not rewarded before; None for all rows.

        Raises:
            NotFiniteError: if a reward is NaN or infinite.
        """
        if self.scale is not None:
            new = fresh or buffer
            self.scale.see(extrinsic[: len(new)], new.trajectories["lengths"], new.chains, update)
        scaled = extrinsic.astype(np.float64) if self.scale is None else self.scale.apply(extrinsic)
        rewards: Floats = scaled[:, None] * self.strengths
        if not self.others:
            return rewards
        self._losses, self._transitions = {}, BufferTransitions(self._context.spec, buffer, self._context.device)
        block = rows_per_pass(self._context.spec)
        for start in range(0, len(rewards), block):
            rows = np.arange(start, min(start + block, len(rewards)))
            some = self._transitions.take(rows)
            for at in self.others:
                rewards[rows, at] = self.signals[at].rewards(some) * self.strengths[at]
        return rewards

    def learn(self, rows: Tensor) -> None:
        """Train all signals except the environment's reward on some of the rows last passed to `rewards`."""
        assert self._transitions is not None, "only called if there are other signals"
        some = self._transitions.take(rows.numpy())
        for at in self.others:
            for name, loss in self.signals[at].learn(some).items():
                self._losses.setdefault(name, []).append(loss)

    def report(self, buffer: RolloutBuffer, rewards: Floats, update: int) -> None:
        """Report the signals' losses, and the sums of rewards over the episodes that ended in the buffer.

        Args:
            buffer: the rows that were learned from.
            rewards: [N, S] the rewards of these rows.
            update: the update's number, ascending.
        """
        for name, losses in self._losses.items():
            self._context.statistics.add(self._context.behavior, name, float(np.mean(losses)))
        self.report_episodes(buffer.trajectories["lengths"], buffer.chains, rewards[:, self.others], update)

    def value_statistics(self, estimates: Mapping[str, Floats], values: Floats, targets: Floats) -> dict[str, float]:
        """Return statistics of the critic's named estimates [N, S], and of its values and value targets [N, S].

        The explained variance 1 - Var(target - value) / Var(target) is 1 for a perfect critic, 0 for a critic that
        predicts the mean, and negative for a worse critic. If targets are constant, there is no variance to explain.
        """
        statistics = dict[str, float]()
        spread, unexplained = targets.var(axis=0), (targets - values).var(axis=0)
        for at, name in enumerate(self.names):
            for estimate, of_rows in estimates.items():
                statistics[f"Policy/{name.capitalize()} {estimate}"] = float(of_rows[:, at].mean())
            if spread[at] > 0 and isfinite(unexplained[at] / spread[at]):
                statistics[f"Policy/{name.capitalize()} Explained Variance"] = float(1.0 - unexplained[at] / spread[at])
        return statistics


class BufferTransitions:
    """A buffer's rows in the form that reward signals take: not normalised, with each row's next observation.

    Args:
        spec: observations and actions.
        buffer: a full buffer, which must not change while this object is in use.
        device: the device that signals compute on.
    """

    def __init__(self, spec: BehaviorSpec, buffer: RolloutBuffer, device: str) -> None:
        trajectories, last = buffer.trajectories, np.cumsum(buffer.trajectories["lengths"]) - 1
        self._device = device
        self._observations, self._finals = buffer.observations(), buffer.observations("next_")
        self._ended = np.full(len(buffer), -1, np.int64)
        """[N] index of the trajectory that ends with the row; -1 if none does."""
        self._ended[last] = np.arange(len(last))
        terminated = np.zeros(len(buffer), np.float32)
        terminated[last] = trajectories["terminated"]
        continuous = environment_actions(spec.actions, buffer.rows["continuous_actions"], buffer.squashed)
        choices = buffer.rows["discrete_actions"].astype(np.int64)
        self._columns = continuous, choices, buffer.rows["rewards"], terminated

    def take(self, rows: NDArray[np.int64]) -> Transitions:
        """Return the transitions for the selected rows."""
        last = np.flatnonzero(self._ended[rows] >= 0)
        finals = self._ended[rows][last]
        following = np.minimum(rows + 1, len(self._ended) - 1)

        def after(row: Array, final: Array) -> Array:
            array = row[following]
            array[last] = final[finals]
            return array

        here, ends = self._observations, self._finals
        others = tuple(after(*pair) for pair in zip(here.others, ends.others, strict=True))
        return Transitions(
            Inputs.from_encoded(here.rows(rows), self._device),
            Inputs.from_encoded(EncodedObservations(after(here.vectors, ends.vectors), others), self._device),
            *(torch.from_numpy(column[rows]).to(self._device) for column in self._columns),
        )


# The buffer. Axis letters: N rows of K consecutive trajectories, cut into Q sequences; P action features.


class RolloutBuffer:
    """The rows of the next update and their trajectories, as columns in the order in which they were added.

    A trajectory that crosses the end of the update's `size` rows is split there. Its remainder, and everything after
    it, waits until `clear` makes room. Columns are preallocated; if space runs out, their capacity is at least doubled.

    Args:
        spec: observations and actions.
        layout: the layout of encoded observations.
        size: the number of rows per update; with groups, a few more if needed to keep teammates together.
        memory: the policy's memory settings; None without memory.
        follows_agents: whether to keep the agent and episode of each trajectory.
        grouped: whether to keep group data: the columns `headrace.queues.columns.GROUP_*`, and the batches' `sources`.
        extra: additional row columns to keep.
        unroll_length: trajectories are cut at each multiple of this number of rows; 0 for no cuts.
        squashed: whether the policy draws continuous actions as the tanh of a Gaussian.

    Attributes:
        declared: names, dtypes and shapes of the columns of `rows`, `trajectories` and `sequences`.
        rows: [N] encoded, unnormalised observations, actions, log_probs, action_masks, rewards. Columns of actions or
            masks that the behaviour lacks have width 0. Columns are views, valid until the next `append` or `clear`.
        trajectories: [K] length, terminated, final observation, agent, episode, action before the first row.
        sequences: [Q] the column `memories`: the actor's memory before each sequence; empty without memory.
    """

    def __init__(
        self,
        spec: BehaviorSpec,
        layout: ObservationLayout,
        size: int,
        memory: MemorySettings | None = None,
        follows_agents: bool = False,
        grouped: bool = False,
        extra: Sequence[Column] = (),
        unroll_length: int = 0,
        squashed: bool = False,
    ) -> None:
        self._spec, self._size, self._unroll_length = spec, size, unroll_length
        self._observed = [column.name for column in layout.columns()]
        self._following = {f"next_{name}": name for name in self._observed}
        self._preceding, self._sequence_length = dict[str, str](), 0
        actions = spec.actions
        rows = [
            *layout.columns(),
            Column("continuous_actions", "float32", (actions.continuous_size,)),
            Column("discrete_actions", "int32", (len(actions.discrete_branches),)),
            Column("log_probs", "float32", (actions.log_prob_size,)),
            Column("action_masks", "bool", (actions.mask_size if actions.masked else 0,)),
            Column("rewards", "float32"),
            *extra,
        ]
        trajectories = [Column("lengths", "int64"), Column("terminated", "bool"), *layout.columns("next_")]
        sequences = []
        if follows_agents:
            trajectories += [Column("truncated", "bool"), Column("agent_ids", "int64"), Column("episode_ids", "int64")]
        if memory is not None:
            self._sequence_length = memory.sequence_length
            self._preceding = {f"previous_{column.name}": column.name for column in action_columns(spec)}
            trajectories += action_columns(spec, "previous_")
            sequences.append(memory_column(memory.memory_size))
        if grouped:
            self._following["next_ticks"] = "ticks"
            rows += GROUP_ROW_COLUMNS
            trajectories += [*GROUP_TRAJECTORY_COLUMNS, Column("sources", "int64")]
        self.declared = {"rows": rows, "trajectories": trajectories, "sequences": sequences}
        self.grouped, self.squashed = grouped, squashed
        self._arrays: dict[str, dict[str, Array]] = {}
        self._tables: dict[str, dict[str, Array]] = {table: {} for table in self.declared}
        self.rows, self.trajectories, self.sequences = self._tables.values()
        for table, columns in self.declared.items():
            capacity = size if table == "rows" else max(1, size // 16)
            self._arrays[table] = {column.name: np.empty((capacity, *column.shape), column.dtype) for column in columns}
        self._waiting: list[tuple[Columns, Columns]] = []
        """Copies of row and trajectory columns for later updates, in order."""
        self._chains: Chains | None = None
        self.clear()

    def __len__(self) -> int:
        """Return the number of rows for the next update."""
        return len(self.rows["rewards"])

    def append(self, batch: TrajectoryBatch, observations: EncodedObservations, finals: EncodedObservations) -> None:
        """Copy trajectories into the buffer, split at the end of the update's rows.

        Args:
            batch: k trajectories.
            observations: the encoded observations of the batch's rows.
            finals: the trajectories' encoded final observations.
        """
        rows = {**dict.fromkeys(_OPTIONAL, np.empty((batch.num_rows, 0))), **batch.rows}
        rows.update(zip(self._observed, (observations.vectors, *observations.others), strict=True))
        trajectories = {**batch.trajectories, "sources": np.full(batch.num_trajectories, batch.source)}
        for name, column in zip(self._observed, (finals.vectors, *finals.others), strict=True):
            trajectories[f"next_{name}"] = column
        self._add(rows, trajectories)

    def _add(self, rows: Columns, trajectories: Columns) -> None:
        """Copy rows into the tables as far as the update has room for them; the others wait."""
        if self._unroll_length:
            cut = self._unroll_length, len(self)
            trajectories = cut_every(rows, trajectories, *cut, self._following, self._preceding)
        room = self._size - len(self)
        if len(rows["rewards"]) > room:
            if self.grouped:
                kept = moments_within(trajectories, rows["ticks"], room)
            else:
                kept = rows_within(trajectories["lengths"], room)
            rows = {name: column for name, column in rows.items() if name in (*self.rows, "memories")}
            (rows, trajectories), rest = split(rows, trajectories, kept, self._following, self._preceding)
            later, of_later = ({name: column.copy() for name, column in table.items()} for table in rest)
            self._waiting.append((later, of_later))
        self._store(rows, trajectories)

    def _store(self, rows: Columns, trajectories: Columns, sequences: Columns | None = None) -> None:
        """Copy columns to the ends of the tables; columns that a table does not have are ignored."""
        self._chains = None
        if sequences is None and self._sequence_length:
            sequences = self._sequences_of(rows, trajectories)
        for table, columns in (("rows", rows), ("trajectories", trajectories), ("sequences", sequences or {})):
            views, arrays = self._tables[table], self._arrays[table]
            for name, array in arrays.items():
                length, end = len(views[name]), len(views[name]) + len(columns[name])
                if end > len(array):
                    arrays[name] = np.empty((max(end, 2 * len(array)), *array.shape[1:]), array.dtype)
                    arrays[name][:length] = array[:length]
                arrays[name][length:end] = columns[name]
                views[name] = arrays[name][:end]

    def _sequences_of(self, rows: Columns, trajectories: Columns) -> Columns:
        starts = SequenceCuts.of(trajectories["lengths"], self._sequence_length).starts
        return {"memories": rows["memories"][starts]}  # the update recomputes all other memories

    @property
    def chains(self) -> Chains:
        """Which trajectory continues which, by agent and episode; available only if the buffer follows agents."""
        if self._chains is None:
            ended = self.trajectories["terminated"] | self.trajectories["truncated"]
            self._chains = Chains.of(self.trajectories["agent_ids"], self.trajectories["episode_ids"], ended)
        return self._chains

    def cuts(self) -> SequenceCuts:
        """Return how the trajectories are cut into sequences, for a policy with memory."""
        return SequenceCuts.of(self.trajectories["lengths"], self._sequence_length)

    def observations(self, prefix: Literal["", "next_"] = "") -> EncodedObservations:
        """Return the rows' observations or, with a prefix, the final observations: not normalised, as views."""
        table = self.trajectories if prefix else self.rows
        vectors, *others = (table[f"{prefix}{name}"] for name in self._observed)
        return EncodedObservations(vectors, tuple(others))

    def action_features(self) -> NDArray[np.float32]:
        """Return features [N, P] of each row's action."""
        actions, continuous = self._spec.actions, self.rows["continuous_actions"]
        sent = environment_actions(actions, continuous, self.squashed)
        return action_features(actions, sent, self.rows["discrete_actions"])

    def previous_action_features(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return features [N, P] of each row's previous action, and [K, P] of each trajectory's last action."""
        lengths = self.trajectories["lengths"]
        last = np.cumsum(lengths) - 1
        features = self.action_features()
        before = np.empty_like(features)
        before[1:] = features[:-1]
        actions = self._spec.actions
        drawn, choices = drawn_actions(actions, self.trajectories, len(lengths), "previous_")
        drawn = environment_actions(actions, drawn, self.squashed)
        before[last - lengths + 1] = action_features(actions, drawn, choices)
        return before, features[last]

    def joined(self, rows: Columns, trajectories: Columns) -> RolloutBuffer:
        """Return a new buffer with these trajectories after this one's; their memories are in `trajectories`."""
        both = copy(self)
        both._chains = None
        both.rows, both.trajectories = _joined(self.rows, rows), _joined(self.trajectories, trajectories)
        both.sequences = _joined(self.sequences, trajectories)
        return both

    def clear(self) -> None:
        """Drop the rows of one update; rows that wait take their place. Memory is not freed."""
        self._chains = None
        for table, arrays in self._arrays.items():
            self._tables[table].update({name: array[:0] for name, array in arrays.items()})
        waiting, self._waiting = self._waiting, []
        for rows, trajectories in waiting:
            self._add(rows, trajectories)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of all columns, including rows for later updates."""
        parts: list[tuple[Columns, ...]] = [(self.rows, self.trajectories, self.sequences)]
        for rows, trajectories in self._waiting:
            sequences = self._sequences_of(rows, trajectories) if self._sequence_length else {}
            parts.append((rows, trajectories, sequences))
        state = dict[str, Any]()
        for (table, names), of_parts in zip(self._tables.items(), zip(*parts, strict=True), strict=True):
            state[table] = {name: np.concatenate([part[name] for part in of_parts]) for name in names}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace all rows with those in `state_dict()`, as the rows of one update.

        Raises:
            StageError: if a column is missing or has the wrong shape; the message names it.
        """
        none = np.empty((len(state["rows"]["rewards"]), 0))
        tables = {**state, "rows": {**dict.fromkeys(_OPTIONAL, none), **state["rows"]}}
        for table, arrays in self._arrays.items():
            for name, array in arrays.items():
                got = np.shape(tables[table][name])[1:] if name in tables.get(table, {}) else None
                if got != array.shape[1:]:
                    raise StageError(f"buffer column {name!r}: expected rows of shape {array.shape[1:]}, got {got}")
        self._waiting = []
        self.clear()
        self._store(tables["rows"], tables["trajectories"], tables.get("sequences"))


def _joined(first: Columns, second: Columns) -> dict[str, Array]:
    return {name: np.concatenate([column, second[name]]) for name, column in first.items()}


def gathered_sequences(rows: Inputs, numbers: NDArray[np.int64], memories: Tensor) -> Inputs:
    """Gather sequences of rows [q, L] that start with the memories [q, m]."""
    device, flat = rows.vectors.device, torch.from_numpy(numbers.reshape(-1))
    index = to_device(flat, device)
    others = gathered(rows.others, flat, device)
    previous = None if rows.previous_actions is None else rows.previous_actions.index_select(0, index)
    return Inputs(rows.vectors.index_select(0, index), others, previous, memories, numbers.shape[1])


# Recursions over trajectories that are packed end to end.


def next_values(
    values_t: Floats, final_values: Floats, lengths: NDArray[np.integer], valueless: NDArray[np.bool_]
) -> Floats:
    """Return the value [N, S] after each row: the next row's value, the final value, or 0 if that is `valueless`."""
    values_tp1 = np.empty_like(values_t)
    values_tp1[:-1] = values_t[1:]
    values_tp1[np.cumsum(lengths) - 1] = np.where(valueless, 0.0, final_values)
    return values_tp1


def accumulated(terms: Floats, decay: Floats, lengths: NDArray[np.integer]) -> Floats:
    """Return x_t = term_t + decay_t x_{t+1} within each trajectory, from terms [N, S] and decays [N, S] or [S]."""
    # One pass per distance from the trajectories' ends, over all trajectories that are long enough: the longest come
    # first, so they are a prefix.
    order = np.argsort(-lengths, kind="stable")
    last = (np.cumsum(lengths) - 1)[order]
    counts = np.bincount(lengths)[::-1].cumsum()[::-1][1:]  # [longest] how many trajectories have at least 1, 2, … rows
    decays, sums = np.broadcast_to(decay, terms.shape), terms.copy()
    for distance, count in enumerate(counts[1:].tolist(), 1):
        rows = last[:count] - distance
        sums[rows] += decays[rows] * sums[rows + 1]
    return sums

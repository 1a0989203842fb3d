"""IMPALA as a `Trainer`: V-trace on unrolls, some of which are replayed.

Based on Espeholt et al. (2018), "IMPALA", with the replay and the cloning losses of Rolnick et al. (2019), "CLEAR",
combined as in the learner of DeepMind's StarCraft II agents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.config import ImpalaHyperparameters, MemorySettings
from headrace.queues.columns import Column
from headrace.queues.messages import Array, Columns
from headrace.stages.policy.design import ACTION_HEADS, MASK_PENALTY
from headrace.stages.policy.network.actor_critic import make_actor_critic
from headrace.stages.policy.network.layers import to_device
from headrace.stages.trainer.gradients import say_uncaptured
from headrace.stages.trainer.impala.gradients import (
    ImpalaByHand,
    Recorded,
    Unrolls,
    joined_inputs,
    pieces_of,
    sequence_inputs,
)
from headrace.stages.trainer.impala.update import ImpalaUpdate, Learned, clipped_rewards
from headrace.stages.trainer.on_policy.rollout_buffer import RolloutBuffer
from headrace.stages.trainer.on_policy.trainer import OnPolicyTrainer, Outcome
from headrace.stages.trainer.on_policy.update import Coefficients
from headrace.stages.trainer.protocol import TrainerContext
from headrace.stages.trainer.replay_store import LazyColumn, ReplayFileError, ReusedSlots, read_replay, write_replay
from headrace.stages.trainer.trajectories import Chains

VALUES = "recorded_values"
"""Name of the row column with the critic's values when the row was first learned from."""


class ImpalaTrainer(OnPolicyTrainer[ImpalaHyperparameters, ImpalaUpdate]):
    """Learns one behaviour from unrolls with V-trace. A group's reward is added to each member's own reward.

    Raises:
        StageError: if the behaviour can't be trained: it has no actions, an observation has no suitable encoder, or the
            demonstrations are unusable.
    """

    hyperparameters = ImpalaHyperparameters

    def __init__(self, context: TrainerContext) -> None:
        super().__init__(context)
        self._replay: UnrollReplay | None = None
        if self._hyperparameters.batch_size_from_replay:
            self._joined = self._make_joined()
            self._replay = self._make_replay()

    def _learn(self, chains: Chains | None) -> Outcome:
        h, fresh = self._hyperparameters, len(self._buffer)
        pretraining = self.step - fresh < h.critic_pretrain_steps
        batch = self._with_replayed()
        transitions = self._signals.transitions(batch)
        rewards = self._signals.rewards(batch.rows["rewards"], transitions)
        unrolls, coefficients = self._unrolls(batch, rewards, fresh), self._coefficients()
        if pretraining:
            learned = self._update.pretrain_critic(unrolls, coefficients.learning_rate, self.step)
        else:
            learned = self._update.learn(unrolls, coefficients, self.step)
            self._clone()
        learn_signals = self._signals.learner(transitions)
        if learn_signals is not None:
            learn_signals(torch.arange(unrolls.all_rows))
        self._remember(learned.values[:fresh])
        return Outcome(rewards[:fresh], self._statistics(learned, unrolls, coefficients, pretraining))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`. The replay buffer is then empty; `load_bulk` fills it."""
        super().load_state_dict(state)
        if self._replay is not None:
            self._replay.clear()

    def save_bulk(self, folder: Path) -> None:
        """Write the replay buffer to a file."""
        if self._replay is not None:
            write_replay(self._replay, self._replay_path(folder), self.step)

    def load_bulk(self, folder: Path) -> str | None:
        """Read the replay buffer; if its file is missing, replay starts once the buffer has filled again."""
        if self._replay is None:
            return None
        try:
            read_replay(self._replay, self._replay_path(folder), self.step)
        except ReplayFileError as error:
            return f"the replay buffer could not be restored, so it starts empty: {error}"
        return None

    def _make_update(self) -> ImpalaUpdate:
        shared, device = self._hyperparameters.shared_critic, self.context.device
        network = make_actor_critic(self._design, len(self._signals.names), shared, self._random, device)
        say_uncaptured(self.context, "each update is a single step, on trajectories of different lengths")
        perceptrons, h, spec = self._perceptrons(network), self._hyperparameters, self._spec
        update = ImpalaUpdate(network, spec, h, self._signals.gammas, self.context.replicas)
        if perceptrons is not None:
            update.gradients = ImpalaByHand(perceptrons, spec.actions, h.batch_size * h.unroll_length)
        return update

    def _make_buffer(self) -> RolloutBuffer:
        h = self._hyperparameters
        return RolloutBuffer(
            self._spec,
            self._intake.layout,
            h.rows_per_update,
            self._sequences(),
            follows_agents=self._signals.follows_agents,
            extra=self._asked_columns,
            unroll_length=h.unroll_length,
            squashed=self.squashed,
        )

    def _make_joined(self) -> RolloutBuffer:
        recorded = Column(VALUES, "float32", (len(self._signals.names),))
        rows, extra = self._hyperparameters.batch_rows, [*self._asked_columns, recorded]
        sizes = self._spec, self._intake.layout, rows, self._sequences()
        return RolloutBuffer(*sizes, extra=extra, squashed=self.squashed)

    def _sequences(self) -> MemorySettings | None:
        """Return the memory's settings, with one sequence per unroll; None without memory."""
        length = {"sequence_length": self._hyperparameters.unroll_length}
        return None if self._memory is None else self._memory.model_copy(update=length)

    def _make_replay(self) -> UnrollReplay:
        h, tables = self._hyperparameters, self._joined
        pieces = [column for column in tables.trajectories.declared if column.name != "lengths"]
        if tables.sequences is not None:
            pieces += tables.sequences.declared
        return UnrollReplay(tables.rows.declared, pieces, h.unroll_length, h.replay_capacity, h.replay_sampling)

    def _replay_path(self, folder: Path) -> Path:
        return folder / f"{self.context.behavior}-unrolls.bin"

    def _with_replayed(self) -> RolloutBuffer:
        """Return the fresh rows, followed by replayed rows if the replay buffer is large enough."""
        count = self._hyperparameters.batch_size_from_replay
        if self._replay is None or len(self._replay) < count:
            return self._buffer
        fresh, joined = self._buffer, self._joined
        joined.clear()
        rows, trajectories = self._replay.draw(count, self._random)
        missing = np.zeros((len(fresh), len(self._signals.names)), np.float32)
        before = {} if fresh.sequences is None else fresh.sequences.columns()
        joined.extend({**fresh.rows.columns(), VALUES: missing}, fresh.trajectories.columns(), before)
        joined.extend(rows, trajectories, trajectories)
        return joined

    def _remember(self, values: NDArray[np.float64]) -> None:
        """Add the fresh unrolls to the replay buffer, together with the critic's values [F, S]."""
        if self._replay is None:
            return
        fresh = self._buffer
        before = {} if fresh.sequences is None else fresh.sequences.columns()
        rows = {**fresh.rows.columns(), VALUES: values.astype(np.float32)}
        self._replay.add(rows, {**fresh.trajectories.columns(), **before}, self._random)

    def _unrolls(self, batch: RolloutBuffer, rewards: NDArray[np.float64], fresh: int) -> Unrolls:
        """Convert a batch with rewards [N, S], whose first `fresh` rows are fresh, to the update's input.

        With several replicas, each takes a part of the trajectories.
        """
        rows, trajectories, device = batch.rows, batch.trajectories, self.context.device
        pieces, here = pieces_of(trajectories["lengths"], self.context.replicas)
        own = here.rows
        lengths, terminated = trajectories["lengths"][pieces], trajectories["terminated"][pieces]
        before, last = batch.previous_action_features() if batch.sequences is not None else (None, None)
        inputs = self._input_rows(batch.observations(), before).part(own)
        finals = self._input_rows(batch.final_observations(), last).part(pieces)
        places = None
        if batch.sequences is None:
            together = joined_inputs(inputs, finals)
        else:
            memories = to_device(torch.from_numpy(batch.sequences["memories"][pieces]), device)
            together, places = sequence_inputs(inputs, finals, lengths, memories)
        continuous, choices = batch.actions()
        penalties = self._penalties(rows["action_masks"]) if self._spec.actions.masked else None
        chosen = to_device(torch.from_numpy(choices[own].astype(np.int64)), device)
        own_fresh = min(max(fresh - own.start, 0), here.size)
        replayed = slice(own.start + own_fresh, own.stop)
        return Unrolls(
            together,
            places,
            to_device(torch.from_numpy(continuous[own]), device),
            torch.split(chosen, 1, dim=1) if choices.shape[1] else (),
            None if penalties is None else to_device(torch.from_numpy(penalties[own]), device),
            rows["log_probs"][own].sum(axis=1),
            clipped_rewards(rewards[own], self._hyperparameters.reward_clipping),
            lengths,
            terminated[:, None] & ~self._signals.ignore_termination,
            own_fresh,
            self._recorded(batch, penalties, replayed) if len(batch) > fresh else None,
            len(batch),
            fresh,
            here,
        )

    def _penalties(self, masks: Array) -> NDArray[np.float32]:
        """Return penalties [N, H] to add to head outputs: `MASK_PENALTY` where masks [N, choices] forbid a choice."""
        means = np.zeros((len(masks), self._spec.actions.continuous_size), np.float32)
        return np.concatenate([means, np.where(masks, np.float32(0), np.float32(MASK_PENALTY))], axis=1)

    def _recorded(self, batch: RolloutBuffer, penalties: NDArray[np.float32] | None, replayed: slice) -> Recorded:
        device, heads = self.context.device, None
        if self._asked_columns:
            acted = batch.rows[ACTION_HEADS][replayed].copy()
            if penalties is not None:
                acted[:, -self._spec.actions.mask_size :] += penalties[replayed, -self._spec.actions.mask_size :]
            heads = to_device(torch.from_numpy(acted), device)
        return Recorded(heads, to_device(torch.from_numpy(batch.rows[VALUES][replayed]), device))

    def _statistics(
        self, learned: Learned, unrolls: Unrolls, coefficients: Coefficients, pretraining: bool
    ) -> dict[str, float]:
        """Return an update's statistics, keyed by name; `pretraining` is true if only the critic has learned."""
        found = self._signals.value_statistics({"Value Estimate": learned.values}, learned.values, learned.targets)
        if learned.ratios is not None:
            found |= learned.ratios.named()
        if pretraining:
            found["critic_pretrain/baseline_loss"] = learned.losses["baseline"]
            found["critic_pretrain/grad_norm"] = learned.grad_norm
            found["critic_pretrain/learning_rate"] = coefficients.learning_rate
        else:
            found |= {f"loss/{name}": loss for name, loss in learned.losses.items() if self._is_told(name)}
            found["grad_norm"] = learned.grad_norm
            found["learning_rate"] = coefficients.learning_rate
            found["entropy_cost"] = coefficients.beta
            found["Policy/Entropy"] = learned.entropy
        if self._replay is not None:
            found["Policy/Replayed Share"] = 1.0 - unrolls.all_fresh / unrolls.all_rows
        return found

    def _is_told(self, loss: str) -> bool:
        return self._replay is not None or not loss.endswith("_cloning")


# The replay buffer holds past unrolls, some of which are drawn in addition to fresh ones. An unroll is T rows of
# consecutive trajectories; no trajectory crosses an unroll's boundaries. A trajectory's data other than rows is in a
# slot that the trajectory's last row refers to.


Index = NDArray[np.int64]
_ENDED = "piece"
"""Row column with the slot of the trajectory that ends with the row; -1 if no trajectory ends there."""


class UnrollReplay:
    """Keeps at most `capacity` unrolls, and draws from them uniformly.

    Args:
        rows: the row columns.
        trajectories: the trajectory columns, without lengths.
        unroll_length: T, the number of rows per unroll.
        capacity: the maximum number of unrolls to keep.
        sampling: `fifo` keeps the newest unrolls; `reservoir` keeps a uniform sample of all unrolls ever added (Vitter
            1985, "Random Sampling with a Reservoir", algorithm R).
    """

    def __init__(
        self,
        rows: Sequence[Column],
        trajectories: Sequence[Column],
        unroll_length: int,
        capacity: int,
        sampling: str,
    ) -> None:
        self._length = unroll_length
        self._capacity = capacity
        self._sampling = sampling
        most = capacity * unroll_length
        self._rows = {column.name: LazyColumn(column, most) for column in rows}
        self._ended = LazyColumn(Column(_ENDED, "int64"), most)
        self._pieces = {column.name: LazyColumn(column, most) for column in trajectories}
        self._slots = ReusedSlots(most)
        self.clear()

    def clear(self) -> None:
        """Remove all unrolls."""
        self._added = 0
        self._count = 0
        self._slots.clear()

    def __len__(self) -> int:
        """Return the number of unrolls kept."""
        return self._count

    @property
    def sizes(self) -> Mapping[str, int]:
        """The YAML settings that determine the buffer's shape."""
        return {"replay_capacity": self._capacity, "unroll_length": self._length}

    def add(self, rows: Columns, trajectories: Columns, random: np.random.Generator) -> None:
        """Copy n unrolls into the buffer.

        Args:
            rows: the row columns [n * T].
            trajectories: the trajectory columns, including `lengths`.
            random: the generator that, for a reservoir, decides which unrolls are kept.
        """
        lengths = trajectories["lengths"].astype(np.int64)
        n = int(lengths.sum()) // self._length
        kept, places = self._places(n, random)
        if not len(kept):
            return
        self._release(places[places < self._count])
        self._count = max(self._count, int(places.max()) + 1)
        chosen = np.zeros(n, np.bool_)
        chosen[kept] = True
        last = np.cumsum(lengths) - 1
        pieces = np.flatnonzero(chosen[last // self._length])
        slots = self._slots.allocate(len(pieces))
        ended = np.full(n * self._length, -1, np.int64)
        ended[last[pieces]] = slots
        source, target = self._rows_of(kept), self._rows_of(places)
        self._ended.put(target, ended[source])
        for name, column in self._rows.items():
            column.put(target, rows[name][source])
        for name, column in self._pieces.items():
            column.put(slots, trajectories[name][pieces])

    def draw(self, count: int, random: np.random.Generator) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return row and trajectory columns of `count` different unrolls; the buffer must hold that many."""
        at = self._rows_of(random.choice(self._count, count, replace=False))
        ended = self._ended.take(at)
        last = np.flatnonzero(ended >= 0)
        rows = {name: column.take(at) for name, column in self._rows.items()}
        trajectories = {name: column.take(ended[last]) for name, column in self._pieces.items()}
        return rows, {**trajectories, "lengths": np.diff(last, prepend=-1)}

    def facts(self) -> dict[str, Any]:
        """Return everything except the columns; see `headrace.stages.trainer.replay_store`."""
        return {**self.sizes, "added": self._added, "count": self._count, "touched": self._slots.touched}

    def columns(self) -> list[tuple[LazyColumn, int]]:
        """Return all columns, each with the number of leading rows in use."""
        rows = self._count * self._length
        return [
            (self._ended, rows),
            *((column, rows) for column in self._rows.values()),
            *((column, self._slots.touched) for column in self._pieces.values()),
        ]

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Restore `facts()`; the caller must then fill the columns and call `restored`."""
        self.clear()
        self._added, self._count, self._slots.touched = (int(facts[name]) for name in ("added", "count", "touched"))

    def restored(self) -> None:
        """Find the slots in use. Call this once all columns are filled."""
        ended = self._ended.take(np.arange(self._count * self._length)) if self._count else np.empty(0, np.int64)
        self._slots.restore(self._slots.touched, ended[ended >= 0])

    def _places(self, n: int, random: np.random.Generator) -> tuple[Index, Index]:
        """Return the indices of those of n new unrolls that are kept, and their positions, which are all different."""
        numbers = self._added + np.arange(n)
        self._added += n
        if self._sampling == "fifo":
            places = numbers % self._capacity
        else:
            drawn = random.integers(0, numbers + 1)
            places = np.where(numbers < self._capacity, numbers, drawn)
        kept = np.flatnonzero(places < self._capacity)
        # If two unrolls get the same position, the later one is kept.
        _, first = np.unique(places[kept][::-1], return_index=True)
        kept = np.sort(kept[::-1][first])
        return kept, places[kept]

    def _rows_of(self, unrolls: Index) -> Index:
        rows: Index = (unrolls[:, None] * self._length + np.arange(self._length)).reshape(-1)
        return rows

    def _release(self, unrolls: Index) -> None:
        ended = self._ended.take(self._rows_of(unrolls)) if len(unrolls) else np.empty(0, np.int64)
        self._slots.release(ended[ended >= 0])

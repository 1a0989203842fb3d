"""Soft actor-critic as a `Trainer`, with a value network and ML-Agents' settings.

In an update, `replay_memory` draws rows, `minibatch` converts them to network inputs, and `update` takes a gradient
step on the losses. docs/differences.md lists the differences from ML-Agents.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.config import SACHyperparameters
from headrace.queues.messages import PolicyUpdate, TrajectoryBatch
from headrace.stages.errors import NotFiniteError, StageError
from headrace.stages.policy.design import policy_layout
from headrace.stages.policy.network.layers import to_device
from headrace.stages.trainer.adam import flushed_denormals, not_finite
from headrace.stages.trainer.imitation.cloning import ClonedActor, make_cloning
from headrace.stages.trainer.intake import Intake, Transitions, policy_design, with_group_rewards
from headrace.stages.trainer.pacing import rows_per_update
from headrace.stages.trainer.protocol import (
    LEARNING_RATE_FLOOR,
    Part,
    Schedule,
    Trainer,
    TrainerContext,
    new_random,
    random_state,
    restore_random,
)
from headrace.stages.trainer.replay_store import ReplayFileError, read_replay, write_replay
from headrace.stages.trainer.rewards.signal import Extrinsic, RewardSignal, make_signals, reward_scale
from headrace.stages.trainer.sac.gradients import make_update
from headrace.stages.trainer.sac.hindsight import HindsightMemory
from headrace.stages.trainer.sac.minibatch import (
    LOSSES,
    EpisodeRewards,
    MinibatchMaker,
    UpdateMeasures,
    measures_of_all,
    part_of,
    statistics_of,
)
from headrace.stages.trainer.sac.networks import check_actions
from headrace.stages.trainer.sac.pace import UpdatePace, UpdateRatio
from headrace.stages.trainer.sac.replay_memory import ReplayedRows, ReplayMemory, replayed_columns
from headrace.stages.trainer.sac.sharded_replay import AT_ONCE, ShardedReplay

_CALLS_PER_NORM = 8
"""Gradient norms are measured in one out of this many calls to `learn`, because there may be a call every few steps."""


class SACTrainer(Trainer):
    """Learns one behaviour from a replay memory of its newest steps.

    Raises:
        StageError: if the behaviour can't be trained: it has no reward signals or no actions, an action has no bounds,
            an observation has no suitable encoder, or the demonstrations do not fit.
    """

    squashed = True
    off_policy = True

    step = 0
    """Number of agent steps added so far."""
    version = 0
    """Number of calls to `learn` so far."""

    def __init__(self, context: TrainerContext) -> None:
        super().__init__(context)
        settings, spec = context.settings, context.spec
        self._design = policy_design(context)
        self._layout = policy_layout(self._design)
        self._random = new_random(context.seed)
        # A subclass named as `module:Class` gets its hyperparameters unchanged from the YAML.
        self._hyperparameters = h = SACHyperparameters.model_validate(settings.hyperparameters)
        check_actions(context.behavior, spec.actions, h.target_entropy)
        self._signals = make_signals(context)
        self._scale = reward_scale(self._signals, h)
        ends = [float(not signal.ignores_termination) for signal in self._signals]
        beyond = 0.0 in ends or h.hindsight is not None  # hindsight needs the goal achieved by the last step
        self._intake = Intake(spec, settings.network_settings.normalize, beyond_termination=beyond)
        if not self._signals:
            raise StageError(f"{context.behavior}: reward_signals: sac needs at least one signal to learn from")
        self._update = make_update(context, self._design, h, len(self._signals), self._random)
        self.threads_sleep = self._update.use_threads is not torch.set_num_threads
        self._acting_views = self._update.actor.module.acting_views(self._update.actor.parameters)
        actor = ClonedActor.from_actor(self._design, self._update.actor)
        self._cloning = make_cloning(context, actor, h.learning_rate, h.batch_size, self._intake, self._random)
        self._memory = self._make_memory()
        self.replay = self._memory if isinstance(self._memory, ShardedReplay) else None
        """The replay buffer if it is in shards in separate hosts, else None. If set, await `prepare` before `learn`."""
        self._maker = MinibatchMaker(self._intake, spec.actions, context.device)
        self._episode_rewards = EpisodeRewards(self._signals, self._maker)
        self._learning = [signal for signal in self._signals if type(signal).learn is not RewardSignal.learn]
        """The signals that learn, which are those that override `learn`."""
        self._observing = [signal for signal in self._signals if not isinstance(signal, Extrinsic)]
        """The signals that may have a normaliser."""
        self._gammas = torch.tensor([signal.gamma for signal in self._signals], device=context.device)
        self._ends = torch.tensor(ends, device=context.device)
        self._pace = UpdatePace(context, h)
        self._unlearned = 0
        self._learned = count()  # counts the calls to `learn` that make updates
        self._parts: list[tuple[Part, int]] = []
        """For each minibatch since the last report, this replica's part of its rows, and the number of rows."""

    @property
    def rows_per_update(self) -> int:
        """Number of steps that actors send at a time; see `pacing`."""
        return rows_per_update(self.context.settings, self.context.agents, self.off_policy)

    def add(self, batch: TrajectoryBatch) -> None:
        """Add copies of trajectories to the replay memory, and update the normalisers."""
        if not batch.num_rows:
            return
        rows, finals = self._intake.encode(batch, self.step)
        for signal in self._observing:
            signal.observe(rows.vectors)
        for name, sums in self._episode_rewards.add(batch, rows, finals, self.version).items():
            self.context.statistics.extend(self.context.behavior, name, sums, "mean")
        rewarded = with_group_rewards(batch)
        if self._scale is not None:
            pieces, ended = rewarded.trajectories, rewarded.terminated | rewarded.truncated
            agents, episodes = pieces["agent_ids"], pieces["episode_ids"]
            self._scale.see(rewarded.rewards, rewarded.lengths, agents, episodes, ended, self.version)
        self._memory.add(rewarded, rows, finals)
        self.step += batch.num_rows
        self._unlearned += batch.num_rows
        self._pace.add(batch, self.step)
        if not self._memory.enough(0):
            self._pace.postpone(self.step)

    def ready(self) -> bool:
        """Return True if `rows_per_update` steps have arrived since the last call to `learn`."""
        return self._unlearned >= self.rows_per_update

    async def prepare(self) -> None:
        """Fetch from the shards the batches that `learn` will need.

        If more than `AT_ONCE` batches are due, learn after each fetch of that many.

        Raises:
            QueueClosed: if a shard is lost.
        """
        assert self.replay is not None, "only called with shards"
        while (due := self._samples_due()) > 0:
            await self.replay.fetch(min(due, AT_ONCE), self._hyperparameters.batch_size, self._random)
            if due <= AT_ONCE:
                return
            self._learn_all()

    def learn(self) -> int:
        """Make all updates that are due, if any; return the number of steps added since the last call.

        Raises:
            NotFiniteError: if a loss or a weight becomes NaN or infinite; the weights are then restored.
        """
        self._learn_all()
        rows, self._unlearned = self._unlearned, 0
        self.version += 1
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimizers, normaliser, signals, counters and random state, but not the replay memory."""
        return {
            "step": self.step,
            "version": self.version,
            "unlearned": self._unlearned,
            **self._pace.state_dict(),
            "update": self._update.state_dict(),
            "normalizer": self._intake.normalizer_state(),
            "signals": {signal.name: signal.state_dict() for signal in self._signals},
            "episode_rewards": self._episode_rewards.state_dict(),
            "reward_scale": None if self._scale is None else self._scale.state_dict(),
            "cloning": None if self._cloning is None else self._cloning.state_dict(),
            "random": random_state(self._random),
        }

    def use_threads(self, threads: int) -> None:
        """Use this number of threads for learning from now on."""
        self._update.use_threads(threads)

    def set_hyperparameter(self, name: str, value: float) -> None:
        """Set the value, with effect from the next update."""
        self._hyperparameters = self._hyperparameters.with_value(name, value)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`. The replay memory is then empty; `load_bulk` fills it."""
        with self.context.naming_behavior():
            self._check_parts(state)
            self._intake.load_normalizer(state["normalizer"])
            self._update.load_state_dict(state["update"])
            for signal in self._signals:
                signal.load_state_dict(state["signals"][signal.name])
            self._episode_rewards.load_state_dict(state["episode_rewards"])
            if self._scale is not None and (scale := state.get("reward_scale")) is not None:
                self._scale.load_state_dict(scale)
            if self._cloning is not None:
                self._cloning.load_state_dict(state["cloning"])
        restore_random(self._random, state["random"])
        self.step, self.version = int(state["step"]), int(state["version"])
        self._unlearned = int(state["unlearned"])
        self._pace.load_state_dict(state, self.step)
        self._memory.clear()

    def save_bulk(self, folder: Path) -> None:
        """Write the replay memory, if `save_replay_buffer` is set."""
        if self._hyperparameters.save_replay_buffer and isinstance(self._memory, ReplayMemory):
            write_replay(self._memory, self._replay_path(folder), self.step)

    def load_bulk(self, folder: Path) -> str | None:
        """Read the replay memory if `save_replay_buffer` is set.

        Otherwise, the trainer collects steps again before it learns.
        """
        warning = None
        if self._hyperparameters.save_replay_buffer and isinstance(self._memory, ReplayMemory):
            try:
                read_replay(self._memory, self._replay_path(folder), self.step)
            except ReplayFileError as error:
                warning = f"the replay buffer could not be restored, so it starts empty: {error}"
        if not len(self._memory):
            # Collect steps as at the start; the updates that would be due for these steps are skipped.
            self._pace.restart(self.step)
        return warning

    def parameter_counts(self) -> Mapping[str, int]:
        """Return the numbers of parameters of the actor, the critics and their target networks."""
        return self._update.parameter_counts()

    def warm_state(self) -> dict[str, Any]:
        """Return all networks and the normaliser."""
        normalizer = self._intake.normalizer_state()
        return {"networks": self._update.weights(), **({} if normalizer is None else {"normalizer": normalizer})}

    def warm_start(self, state: Mapping[str, Any]) -> None:
        """Start from another run's `warm_state()`."""
        with self.context.naming_behavior():
            self._intake.load_normalizer(state.get("normalizer"))
            self._update.load_weights(state["networks"])

    def take_weights(self, tensors: Mapping[str, Any]) -> None:
        """Start from an exported policy's actor and normaliser."""
        with self.context.naming_behavior():
            self._update.actor.module.load_acting(tensors)
            self._intake.load_exported_normalizer(tensors)

    def policy(self) -> PolicyUpdate:
        """Return a policy with the actor's weights and the normaliser's state."""
        return self._intake.policy(self, self._acting_views, self._layout)

    def _make_memory(self) -> ReplayMemory | ShardedReplay:
        spec, h, memory = self.context.spec, self._hyperparameters, self.context.settings.network_settings.memory
        if self.context.replay_shards:
            return ShardedReplay(h.buffer_size, replayed_columns(spec), self.context.replay_shards)
        if h.hindsight is not None:
            return HindsightMemory(self.context, self._intake.layout, h.buffer_size, h.hindsight)
        length = 0 if memory is None else memory.sequence_length
        return ReplayMemory(spec, self._intake.layout, h.buffer_size, self._design.memory_size, length)

    @flushed_denormals()
    def _learn_all(self) -> None:
        if self._owes(self._pace.of_policy):
            self._learn_policy()
        while self._owes(self._pace.of_signals):
            self._learn_signals()
            self._pace.of_signals.count()

    def _samples_due(self) -> int:
        """Return how many batches `learn` would need in addition to those already fetched."""
        if self.replay is None or len(self.replay) < self._hyperparameters.batch_size:
            return 0
        pace = self._pace
        due = pace.owed(pace.of_policy) + (pace.owed(pace.of_signals) if self._learning else 0)
        return due - self.replay.ready

    def _owes(self, ratio: UpdateRatio) -> bool:
        samples = ratio is self._pace.of_policy or bool(self._learning)
        if self.replay is not None and samples and not self.replay.ready:
            return False
        return self._memory.enough(self._hyperparameters.batch_size) and self._pace.owes(ratio)

    def _learn_policy(self) -> None:
        before = self._update.snapshot()
        h, steps = self._hyperparameters, self.context.settings.max_steps
        learning_rate = Schedule(h.learning_rate_schedule, h.learning_rate, LEARNING_RATE_FLOOR, steps).at(self.step)
        made: list[UpdateMeasures] = []
        norms: list[float] = []
        self._parts.clear()
        cloned: list[Mapping[str, float]] = []
        while self._owes(self._pace.of_policy):
            made.append(self._learn_minibatch(learning_rate))
            if len(made) == 1 and next(self._learned) % _CALLS_PER_NORM == 0:
                norms = self._update.gradient_norms()  # measured now, because cloning overwrites the gradients
            if self._cloning is not None:
                cloned.append(self._cloning.update(self.step))
            self._pace.of_policy.count()
        table = torch.stack([measures.losses for measures in made]).cpu().numpy()
        if not (np.isfinite(table).all() and self._update.finite()):
            self._update.restore(before)
            words = not_finite(LOSSES, table, "learning_rate")
            raise NotFiniteError(f"{self.context.behavior}: update at step {self.step}: {words}")
        self._report(table, measures_of_all(made, self.context.replicas, self._parts), learning_rate, norms)
        for found in cloned:
            self._report_all(found)

    def _learn_minibatch(self, learning_rate: float) -> UpdateMeasures:
        replayed = self._sample()
        rows = len(replayed.columns["rewards"])
        noise = self._random.standard_normal(
            (rows * self._update.draws, self.context.spec.actions.continuous_size), np.float32
        )
        share, here = 1.0, Part(slice(0, rows), 1.0)
        if self.context.replicas.size > 1:
            replayed, here, share = part_of(replayed, rows, self.context.replicas)
            draws, width = self._update.draws, noise.shape[1]  # the width is 0 if actions are discrete
            noise = noise.reshape(draws, rows, width)[:, here.rows].reshape(draws * here.size, width)
        transitions = self._maker.transitions(replayed)
        batch = self._maker.minibatch(replayed, transitions)
        rewards = np.stack([self._rewards(signal, replayed, transitions) for signal in self._signals], axis=1)
        discounts = self._gammas * (1.0 - transitions.terminated[:, None] * self._ends)
        device = self.context.device
        self._parts.append((here, rows))
        return self._update.advance(
            batch,
            to_device(torch.from_numpy(rewards), device),
            discounts,
            to_device(torch.from_numpy(noise), device),
            learning_rate,
            share,
        )

    def _rewards(self, signal: RewardSignal, replayed: ReplayedRows, transitions: Transitions) -> NDArray[np.float32]:
        # The environment's rewards are finite, and on the host; reading them from a GPU would wait for its last step.
        own = type(signal) is Extrinsic
        rewards: NDArray[np.float32] = replayed.columns["rewards"] if own else signal.rewards(transitions)
        if own and self._scale is not None:
            rewards = self._scale.apply(rewards).astype(np.float32)
        return rewards * np.float32(signal.strength)

    def _learn_signals(self) -> None:
        """Make one update of the reward signals' networks, all of them on the same rows."""
        if not self._learning:
            return
        replayed = self._sample()
        transitions = self._maker.transitions(replayed)
        if replayed.sequences is not None:
            mask = torch.from_numpy(replayed.sequences.mask).to(self.context.device)
            transitions = transitions.rows(mask)
        for signal in self._learning:
            self._report_all(signal.learn(transitions))

    def _sample(self) -> ReplayedRows:
        memory = self._memory
        sequences = isinstance(memory, ReplayMemory) and memory.sequence_length
        sample = memory.sample_sequences if isinstance(memory, ReplayMemory) and sequences else memory.sample
        return sample(self._hyperparameters.batch_size, self._random)

    def _replay_path(self, folder: Path) -> Path:  # a checkpoint's folder holds the files of all behaviours
        return folder / f"replay-{quote(self.context.behavior, safe='')}.bin"

    def _check_parts(self, state: Mapping[str, Any]) -> None:
        """Reject a state that differs from the trainer in its reward signals, or in whether it has cloning."""
        found, expected = sorted(state["signals"]), sorted(signal.name for signal in self._signals)
        if found != expected:
            made_with = ", ".join(found)
            raise StageError(f"reward_signals are {', '.join(expected)}, but the saved state was made with {made_with}")
        if (self._cloning is None) != (state["cloning"] is None):
            now, then = ("off", "on") if self._cloning is None else ("on", "off")
            raise StageError(f"behavioral_cloning is {now}, but the saved state was made with it {then}")

    def _report(
        self, losses: NDArray[np.float32], measures: UpdateMeasures, learning_rate: float, norms: list[float]
    ) -> None:
        """Report statistics of the updates, with the norms of the actor's and the critics' gradients if measured."""
        found = {"Policy/Learning Rate": learning_rate}
        # Report both coefficients, as in ML-Agents; without actions of its kind, a coefficient is 0.
        discrete = self._update.coefficients.module.logs.detach().exp().tolist()
        found["Policy/Continuous Entropy Coeff"] = discrete.pop(0) if self.context.spec.actions.continuous_size else 0.0
        found["Policy/Discrete Entropy Coeff"] = sum(discrete) / len(discrete) if discrete else 0.0
        self._report_all(found | statistics_of(losses, norms, measures, [signal.name for signal in self._signals]))

    def _report_all(self, found: Mapping[str, float]) -> None:
        for name, value in found.items():
            self.context.statistics.add(self.context.behavior, name, value)

"""Soft actor-critic: the trainer, one gradient step of all networks, the networks, and the losses.

Haarnoja et al. (2018), "Soft Actor-Critic: Off-Policy Maximum Entropy Deep Reinforcement Learning with a Stochastic
Actor" (with a value network), and "Soft Actor-Critic Algorithms and Applications" (entropy coefficients); for discrete
actions, Christodoulou (2019), "Soft Actor-Critic for Discrete Action Settings". If there are several branches, they are
averaged, as in ML-Agents. docs/differences.md lists the differences from ML-Agents.

In an update, `replay.replay_memory` draws rows and converts them to network inputs, and `SACUpdate` takes a gradient
step on the losses, with autograd. By default, `headrace.stages.trainer.fast` replaces the update with a
subclass that computes the same numbers faster.

Axis letters: B rows, S reward signals, C continuous actions, K discrete branches with A choices in total (A = 1 if
there are none), G entropy coefficients: one for all continuous actions together, if any, then one per branch. A mask
[B] is 1 for rows and 0 for padding; it is None without padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import log
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headrace.config import SACHyperparameters
from headrace.queues.messages import TrajectoryBatch
from headrace.queues.specs import ActionSpec
from headrace.stages.errors import NotFiniteError, StageError
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.network.body import ActorNetwork, NetworkBody
from headrace.stages.policy.network.flat_parameters import FlatParameters, seeded
from headrace.stages.policy.network.layers import Inputs, squashed_sample, to_device
from headrace.stages.policy.observations import EncodedObservations
from headrace.stages.trainer.adam import Adam, flushed_denormals, not_finite
from headrace.stages.trainer.imitation.cloning import BehavioralCloning, ClonedActor
from headrace.stages.trainer.intake import BuiltInTrainer, ObservationPreprocessor, with_group_rewards
from headrace.stages.trainer.protocol import SINGLE_TRAINER, Replicas, ReplicaSlice, TrainerContext
from headrace.stages.trainer.replay.hindsight import HindsightMemory
from headrace.stages.trainer.replay.pace import UpdatePace, UpdateRatio
from headrace.stages.trainer.replay.replay_memory import (
    LOSSES,
    MinibatchMaker,
    ReplayedRows,
    ReplayFileError,
    ReplayMemory,
    ReplayMinibatch,
    UpdateMeasures,
    as_replayed,
    part_of,
    read_replay,
    statistics_of,
    write_replay,
)
from headrace.stages.trainer.replay.sharded_replay import AT_ONCE, ShardedReplay
from headrace.stages.trainer.rewards.signal import Extrinsic, RewardSignal, Signals
from headrace.stages.trainer.trajectories import Chains

Network = TypeVar("Network", bound=nn.Module)
_CALLS_PER_NORM = 8
"""Gradient norms are measured in one out of this many calls to `learn`, because there may be a call every few steps."""
_REWARDED_ROWS = 1024
"""Number of rows whose rewards are computed in one pass, because observations may be images."""


class SACTrainer(BuiltInTrainer[SACHyperparameters]):
    """Learns one behaviour from a replay memory of its newest steps.

    Raises:
        StageError: if the behaviour can't be trained: it has no reward signals or no actions, an action has no bounds,
            an observation has no suitable encoder, or the demonstrations do not fit.
    """

    hyperparameters = SACHyperparameters
    squashed = True
    off_policy = True

    policy_updates = 0
    """Number of calls to `learn` so far that took gradient steps. Before the replay memory is full enough, no call
    does."""

    def __init__(self, context: TrainerContext) -> None:
        super().__init__(context)
        settings, spec, h = context.settings, context.spec, self._hyperparameters
        check_actions(context.behavior, spec.actions, h.target_entropy)
        self._signals = signals = Signals(context, h)
        # Hindsight needs the goal that the last step achieved.
        beyond = bool(signals.ignore_termination.any()) or h.hindsight is not None
        self._intake = ObservationPreprocessor(spec, settings.network_settings.normalize, beyond_termination=beyond)
        if not signals.names:
            raise StageError(f"{context.behavior}: reward_signals: sac needs at least one signal to learn from")
        networks = SACNetworks.drawn(self._design, h, len(signals.names), self._random, context.device)
        update = SACUpdate(networks, self._design, h, context.replicas)
        self._update: SACUpdate = context.accelerate(update, context, self._design)
        self.threads_sleep = self._update.threads_sleep
        self._acting_views = self._update.actor.module.acting_views(self._update.actor.parameters)
        self._cloning: BehavioralCloning | None = None
        if settings.behavioral_cloning is not None:
            actor, rate = ClonedActor.from_actor(self._design, self._update.actor), h.learning_rate
            self._cloning = BehavioralCloning(context, actor, rate, h.batch_size, self._intake, self._random)
        self._memory = self._make_memory()
        self.replay = self._memory if isinstance(self._memory, ShardedReplay) else None
        """The replay buffer if it is in shards in separate hosts, else None. If set, await `prepare` before `learn`."""
        self._maker = MinibatchMaker(self._intake, spec.actions, context.device)
        self._learning = [signal for signal in signals.signals if type(signal).learn is not RewardSignal.learn]
        """The signals that learn, which are those that override `learn`."""
        self._gammas = torch.tensor(signals.gammas, dtype=torch.float32, device=context.device)
        self._ends = torch.tensor(~signals.ignore_termination, dtype=torch.float32, device=context.device)
        """[S] 1 if a signal ends with the episode, 0 if its value continues beyond."""
        self._parts = {"signals": signals, "update": self._update, "cloning": self._cloning}
        self._pace = UpdatePace(context, h)
        self._unlearned = 0
        self._counted_steps = 0
        """Number of gradient steps that `policy_updates` covers."""
        self._learned = count()  # counts the calls to `learn` that make updates

    def add(self, batch: TrajectoryBatch) -> None:
        """Add copies of trajectories to the replay memory, and update the normalisers."""
        if not batch.num_rows:
            return
        rows, finals = self._intake.encode(batch, self.step)
        self._signals.observe(rows.vectors)
        rewarded, scale, pieces = with_group_rewards(batch), self._signals.scale, batch.trajectories
        if self._signals.others or scale is not None:
            chains = Chains.of(pieces["agent_ids"], pieces["episode_ids"], batch.terminated | batch.truncated)
            if self._signals.others:
                self._report_episodes(batch, rows, finals, chains)
            if scale is not None:
                scale.see(rewarded.rewards, rewarded.lengths, chains, self.version)
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
        if self._update.steps > self._counted_steps:
            self.policy_updates += 1
            self._counted_steps = self._update.steps
        return rows

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimizers, normaliser, signals, counters and random state, but not the replay memory."""
        return {
            **super().state_dict(),
            "policy_updates": self.policy_updates,
            **self._pace.state_dict(),
            "unlearned": self._unlearned,
            "normalizer": self._intake.normalizer_state(),
        }

    def use_threads(self, threads: int) -> None:
        """Use this number of threads for learning from now on."""
        self._update.use_threads(threads)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`. The replay memory is then empty; `load_bulk` fills it."""
        with self.context.naming_behavior():
            self._intake.load_normalizer(state["normalizer"])
        super().load_state_dict(state)
        self.policy_updates, self._counted_steps = int(state["policy_updates"]), self._update.steps
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
        update = self._update
        modules = {"actor": update.actor.module, **dict(update.critics.module.named_children())}
        counts = {name: sum(parameter.numel() for parameter in module.parameters()) for name, module in modules.items()}
        return {**counts, "targets": update.target.values.numel()}

    def warm_state(self) -> dict[str, Any]:
        """Return all networks and the normaliser."""
        return {"networks": self._update.weights(), "normalizer": self._intake.normalizer_state()}

    def warm_start(self, state: Mapping[str, Any]) -> None:
        """Start from another run's `warm_state()`."""
        with self.context.naming_behavior():
            self._intake.load_normalizer(state.get("normalizer"))
            self._update.load_weights(state["networks"])

    def _make_memory(self) -> ReplayMemory | ShardedReplay:
        spec, h, memory = self.context.spec, self._hyperparameters, self.context.settings.network_settings.memory
        if self.context.replay_shards:
            return ShardedReplay(spec, self._intake.layout, h.buffer_size, self.context.replay_shards)
        if h.hindsight is not None:
            return HindsightMemory(self.context, self._intake.layout, h.buffer_size, h.hindsight)
        length = 0 if memory is None else memory.sequence_length
        return ReplayMemory(spec, self._intake.layout, h.buffer_size, self._design.memory_size, length)

    @flushed_denormals()
    def _learn_all(self) -> None:
        if self._is_due(self._pace.of_policy):
            with self._update.undone_on_failure():
                self._learn_policy()
        while self._learning and self._is_due(self._pace.of_signals):
            self._learn_signals()
            self._pace.of_signals.count()

    def _samples_due(self) -> int:
        """Return how many batches `learn` would need in addition to those already fetched."""
        if self.replay is None or len(self.replay) < self._hyperparameters.batch_size:
            return 0
        pace = self._pace
        due = pace.updates_due(pace.of_policy) + (pace.updates_due(pace.of_signals) if self._learning else 0)
        return due - self.replay.ready

    def _is_due(self, ratio: UpdateRatio) -> bool:
        if self.replay is not None and not self.replay.ready:
            return False
        return self._memory.enough(self._hyperparameters.batch_size) and self._pace.is_due(ratio)

    def _learn_policy(self) -> None:
        learning_rate = self._learning_rate()
        measured, losses, parts = list[UpdateMeasures](), list[Tensor](), list[tuple[ReplicaSlice, int]]()
        norms, cloned = list[float](), list[Mapping[str, float]]()
        while self._is_due(self._pace.of_policy):
            measures, part = self._learn_minibatch(learning_rate)
            measured.append(measures)
            losses.append(measures.losses)
            parts.append(part)
            if len(measured) == 1 and next(self._learned) % _CALLS_PER_NORM == 0:
                norms = self._update.gradient_norms()  # measured now, because cloning overwrites the gradients
            if self._cloning is not None:
                cloned.append(self._cloning.update(self.step))
            self._pace.of_policy.count()
        table = torch.stack(losses).cpu().numpy()
        if not (np.isfinite(table).all() and self._update.finite()):
            words = not_finite(LOSSES, table, "learning_rate")
            raise NotFiniteError(f"{self.context.behavior}: update at step {self.step}: {words}")
        statistics = {"Policy/Learning Rate": learning_rate}
        for name, mean in zip(LOSSES, table.mean(axis=0).tolist(), strict=True):
            statistics[f"Losses/{name}"] = mean
        # Report both coefficients, as in ML-Agents; without actions of its kind, a coefficient is 0.
        discrete = self._update.coefficients.module.logs.detach().exp().tolist()
        continuous = discrete.pop(0) if self.context.spec.actions.continuous_size else 0.0
        statistics["Policy/Continuous Entropy Coeff"] = continuous
        statistics["Policy/Discrete Entropy Coeff"] = sum(discrete) / len(discrete) if discrete else 0.0
        self._report(statistics | statistics_of(measured, norms, self._signals.names, self.context.replicas, parts))
        for of_cloning in cloned:
            self._report(of_cloning)
        self.context.statistics.add(self.context.behavior, "Policy/Gradient Steps", float(self._update.steps), "last")

    def _learn_minibatch(self, learning_rate: float) -> tuple[UpdateMeasures, tuple[ReplicaSlice, int]]:
        """Take a gradient step; return its measurements, this replica's part of the rows, and the number of rows."""
        replayed, update, device = self._sample(), self._update, self.context.device
        rows, width = len(replayed.columns["rewards"]), self.context.spec.actions.continuous_size
        noise = self._random.standard_normal((rows * update.draws, width), np.float32)
        share, here = 1.0, ReplicaSlice(slice(0, rows), 1.0)
        if self.context.replicas.size > 1:
            replayed, here, share = part_of(replayed, rows, self.context.replicas)
            noise = noise.reshape(update.draws, rows, width)[:, here.rows].reshape(update.draws * here.size, width)
        transitions = self._maker.transitions(replayed)
        batch = self._maker.minibatch(replayed, transitions)
        rewards = list[NDArray[np.float32]]()
        for signal in self._signals.signals:
            if type(signal) is Extrinsic:
                # These rewards are finite, and on the host; reading them from a GPU would wait for its last step.
                of_signal = replayed.columns["rewards"]
                if self._signals.scale is not None:
                    of_signal = self._signals.scale.apply(of_signal).astype(np.float32)
            else:
                of_signal = signal.rewards(transitions)
            rewards.append(of_signal * np.float32(signal.strength))
        measures = update.step(
            batch,
            to_device(torch.from_numpy(np.stack(rewards, axis=1)), device),
            # If the episode was only cut short, s' is the real next observation, and its value counts.
            self._gammas * (1.0 - transitions.terminated[:, None] * self._ends),
            to_device(torch.from_numpy(noise), device),
            learning_rate,
            share,
        )
        return measures, (here, rows)

    def _learn_signals(self) -> None:
        """Make one update of the reward signals' networks, all of them on the same rows."""
        replayed = self._sample()
        transitions = self._maker.transitions(replayed)
        if replayed.sequences is not None:
            mask = torch.from_numpy(replayed.sequences.mask).to(self.context.device)
            transitions = transitions.rows(mask)
        for signal in self._learning:
            self._report(signal.learn(transitions))

    def _report_episodes(
        self, batch: TrajectoryBatch, rows: EncodedObservations, finals: EncodedObservations, chains: Chains
    ) -> None:
        """Report the sums of the signals' rewards, except the environment's, over the episodes that end in a batch.

        Learning does not depend on these rewards: an update recomputes the rewards of the rows that it draws.
        """
        others = [self._signals.signals[at] for at in self._signals.others]
        whole, rewards = as_replayed(batch, rows, finals), np.empty((batch.num_rows, len(others)))
        for start in range(0, batch.num_rows, _REWARDED_ROWS):
            block = slice(start, start + _REWARDED_ROWS)
            transitions = self._maker.transitions(whole.part(block))
            for column, signal in enumerate(others):
                rewards[block, column] = signal.rewards(transitions) * signal.strength
        self._signals.report_episodes(batch.lengths, chains, rewards, self.version)

    def _sample(self) -> ReplayedRows:
        memory = self._memory
        sequences = isinstance(memory, ReplayMemory) and memory.sequence_length
        sample = memory.sample_sequences if isinstance(memory, ReplayMemory) and sequences else memory.sample
        return sample(self._hyperparameters.batch_size, self._random)

    def _replay_path(self, folder: Path) -> Path:  # a checkpoint's folder holds the files of all behaviours
        return folder / f"replay-{quote(self.context.behavior, safe='')}.bin"


DISCRETE_TARGET = 0.2
"""A branch's target entropy, as a fraction of the entropy of a uniform choice. ML-Agents uses the same value."""


@dataclass(frozen=True, slots=True)
class SACNetworks:
    """The networks of one behaviour, each with flat parameters."""

    actor: FlatParameters[ActorNetwork]
    critics: FlatParameters[Critics]
    target: FlatParameters[Any]
    """`Critics` or a `ValueNetwork`, which follow the last parameters of `critics`."""
    coefficients: FlatParameters[EntropyCoefficients]

    @classmethod
    def drawn(
        cls,
        design: PolicyDesign,
        hyperparameters: SACHyperparameters,
        signals: int,
        random: np.random.Generator,
        device: str,
    ) -> SACNetworks:
        """Make the networks with initial weights.

        Args:
            design: the policy's design.
            hyperparameters: the behaviour's hyperparameters.
            signals: S, the number of reward signals.
            random: the generator that draws the weights.
            device: the device that holds the networks.
        """
        actions, asks_policy = design.spec.actions, _asks_policy(design)
        actor = FlatParameters(seeded(random, lambda: drawn_for(actions, ActorNetwork(design, True))), device)
        critics = partial(Critics, design, signals, not asks_policy)
        learned = FlatParameters(seeded(random, lambda: drawn_for(actions, critics())), device)
        following = partial(Critics, values=False) if asks_policy else ValueNetwork
        target: FlatParameters[Any] = FlatParameters(seeded(random, lambda: following(design, signals)), device)
        coefficients = FlatParameters(EntropyCoefficients(design, hyperparameters.init_entcoef), device)
        target.values.copy_(learned.values[-len(target.values) :])
        return cls(actor, learned, target, coefficients)


def _asks_policy(design: PolicyDesign) -> bool:
    # With continuous actions, target networks of Q evaluate the next observation if the policy can be evaluated there,
    # because Q is learned sooner (docs/learning.md). As in ML-Agents, a target network of V evaluates it if the policy
    # would need data that is not recorded (choice masks there, or the memory), or if all actions are discrete.
    actions = design.spec.actions
    return bool(actions.continuous_size) and not actions.masked and design.settings.memory is None


class StepInputs(NamedTuple):
    """Everything that changes from one gradient step to the next; see `SACUpdate.step`."""

    batch: ReplayMinibatch
    rewards: Tensor
    discounts: Tensor
    noise: Tensor
    learning_rate: float | Tensor


class SACUpdate:
    """One gradient step of all networks on a minibatch.

    An update is a function of parameters, optimizer states, one minibatch and noise. It reads no tensor's value, so
    nothing waits for a device. The caller checks the losses from time to time.

    Args:
        networks: the networks, which this object changes.
        design: the policy's design.
        hyperparameters: the behaviour's hyperparameters.
        replicas: the replicas that make the same update, each with its part of every minibatch.

    Attributes:
        target_entropies: [G] the target entropies if no choice is masked.
    """

    threads_sleep = False
    """True if a second thread sleeps while it waits; see `Trainer.threads_sleep`."""

    def __init__(
        self,
        networks: SACNetworks,
        design: PolicyDesign,
        hyperparameters: SACHyperparameters,
        replicas: Replicas = SINGLE_TRAINER,
    ) -> None:
        self.networks, self.design, self.settings, self.replicas = networks, design, hyperparameters, replicas
        self.actor, self.critics, self.target = networks.actor, networks.critics, networks.target
        self.coefficients = networks.coefficients
        self._asks_policy = _asks_policy(design)
        self.draws = 2 if self._asks_policy else 1
        """Number of rows of noise that `step` needs per row of a minibatch."""
        self._followed = self.critics.values[-len(self.target.values) :]
        groups: dict[str, FlatParameters[Any]] = {"actor": self.actor, "critics": self.critics}
        groups["coefficients"] = self.coefficients
        self._adams = {
            name: Adam(flat.values, flat.gradients, hyperparameters.adam_epsilon) for name, flat in groups.items()
        }
        self._groups = {**groups, "target": self.target}
        self._actor_parameters = list(self.actor.parameters.values())
        self._critic_parameters = list(self.critics.parameters.values())
        self.learns_coefficients = hyperparameters.entropy_coefficient == "auto"
        self._moving = [self._adams["actor"], self._adams["critics"]]
        if self.learns_coefficients:
            self._moving.append(self._adams["coefficients"])
        """The optimizers that take steps: those of actor, critics and, unless fixed, entropy coefficients."""
        actions = design.spec.actions
        self._continuous = actions.continuous_size
        self._gaussian_heads = design.head_size - actions.mask_size
        self._branches = list(actions.discrete_branches)
        terms = _entropy_terms(actions, hyperparameters.target_entropy)
        device = self.actor.values.device
        self._weights, self.target_entropies = (torch.tensor(numbers, device=device) for numbers in terms)

    def use_threads(self, threads: int) -> None:
        """Use this number of threads for gradient steps from now on."""
        torch.set_num_threads(threads)

    def step(
        self,
        batch: ReplayMinibatch,
        rewards: Tensor,
        discounts: Tensor,
        noise: Tensor,
        learning_rate: float,
        share: float = 1.0,
    ) -> UpdateMeasures:
        """Take one gradient step of all networks.

        Args:
            batch: B rows.
            rewards: [B, S] scaled rewards.
            discounts: [B, S] γ of each signal; 0 if the episode terminated and the signal ends with it.
            noise: [draws B, C] standard normal noise for drawing actions; the part for the next observations comes
                last.
            learning_rate: the learning rate of all optimizers.
            share: weight of the means over these rows, if other replicas have different rows of the same minibatch.
        """
        measures = self._take_step(StepInputs(batch, rewards, discounts, noise, learning_rate), share)
        interval = self.settings.target_update_interval
        if interval > 1 and self.steps % interval == 0:
            self.follow()
        return measures

    def _take_step(self, inputs: StepInputs, share: float = 1.0) -> UpdateMeasures:
        """Take a gradient step; with `target_update_interval` of 1, it includes the move of the targets."""
        measures = self.find_gradients(inputs)
        if self.replicas.size > 1:
            of_all = [self.actor.gradients, self.critics.gradients, self.coefficients.gradients, measures.losses]
            for tensor in of_all:
                tensor.mul_(share)
            self.replicas.add_up(*of_all)
        for adam in self._moving:
            adam.step(inputs.learning_rate)
        if self.settings.target_update_interval == 1:
            self.follow()
        return measures

    def find_gradients(self, inputs: StepInputs) -> UpdateMeasures:
        """Set the gradients of all networks.

        Each loss is propagated back immediately, while the networks' results are still in the processor's cache.
        """
        batch, rewards, discounts, noise, _ = inputs
        critics, seen, mask, rows = self.critics.module, batch.critic_inputs, batch.mask, len(rewards)
        self.actor.gradients.zero_()
        self.critics.gradients.zero_()
        # The policy maximises the soft value of its actions.
        drawn = self._draw(batch.actor_inputs, noise[:rows], batch.penalties)
        soft, negentropies = self._soft_values(critics, seen, *drawn), drawn[2]
        policy_loss = -masked_mean(soft, mask)
        torch.autograd.backward(policy_loss, inputs=self._actor_parameters)
        losses = [policy_loss.detach()]
        # Both Qs learn the soft Bellman backup r + γ·V(s') of the actions taken.
        with torch.no_grad():
            targets = torch.addcmul(rewards, discounts, self._next_values(batch.target_inputs, noise[rows:]))
        taken = list[Tensor]()
        for network in (critics.q1, critics.q2):
            q = taken_values(network(seen, batch.continuous), batch.choices)
            q_loss = half_squared_error(q, targets, mask)
            torch.autograd.backward(q_loss, inputs=self._critic_parameters)
            losses.append(q_loss.detach())
            taken.append(q.detach())
        # V learns the soft value of the policy's actions, unless target networks of Q stand in for V.
        if self._asks_policy:
            values = soft
            losses.append((losses[1] + losses[2]) / 2)
        else:
            values = critics.value(seen)
            value_loss = half_squared_error(values, soft.detach(), mask)
            torch.autograd.backward(value_loss, inputs=self._critic_parameters)
            losses.append(value_loss.detach())
        if self.learns_coefficients:
            entropy_targets = self.target_entropies if batch.allowed is None else self._masked_entropies(batch.allowed)
            self.coefficients.gradients.copy_(coefficient_gradients(negentropies, entropy_targets, mask))
        q1, q2 = taken
        return UpdateMeasures(torch.stack(losses), q1, q2, targets, values.detach(), negentropies.detach(), mask)

    def _draw(
        self, inputs: Inputs, noise: Tensor, penalties: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return continuous actions [B, C], the choices' probabilities [B, A], and negative entropies [B, G]."""
        heads: Tensor = self.actor.module(inputs)[0]
        actions, probabilities, negentropies = heads[:, :0], None, list[Tensor]()
        if c := self._continuous:
            actions, log_probs = squashed_sample(heads[:, :c], heads[:, c : 2 * c], noise)
            negentropies.append(log_probs.sum(dim=1, keepdim=True))
        if self._branches:
            logits = heads[:, self._gaussian_heads :]
            if penalties is not None:
                logits = logits + penalties
            parts = [torch.log_softmax(branch, dim=1) for branch in torch.split(logits, self._branches, dim=1)]
            shares = [part.exp() for part in parts]
            probabilities = shares[0] if len(shares) == 1 else torch.cat(shares, dim=1)
            # A forbidden choice has a probability of exactly 0 and a logarithm of about -1e8, so their product is 0.
            negentropies += [(p * part).sum(dim=1, keepdim=True) for p, part in zip(shares, parts, strict=True)]
        return actions, probabilities, negentropies[0] if len(negentropies) == 1 else torch.cat(negentropies, dim=1)

    def _soft_values(
        self, critics: Critics, inputs: Inputs, actions: Tensor, probabilities: Tensor | None, negentropies: Tensor
    ) -> Tensor:
        """Return the soft values [B, S] of actions that `_draw` returned.

        The policy maximises the smaller of the two Qs, which V also learns. In ML-Agents, it maximises the first Q.
        """
        first = expected_values(critics.q1(inputs, actions), probabilities, len(self._branches))
        second = expected_values(critics.q2(inputs, actions), probabilities, len(self._branches))
        coefficients = self.coefficients.module.logs.detach().exp()
        return soft_values(torch.minimum(first, second), negentropies, coefficients, self._weights)

    def _next_values(self, inputs: Inputs, noise: Tensor) -> Tensor:
        """Return the target networks' soft values [B, S] of the next observations."""
        if self._asks_policy:
            return self._soft_values(self.target.module, inputs, *self._draw(inputs, noise))
        values: Tensor = self.target.module(inputs)
        if inputs.memories is None:
            return values
        return values.view(-1, inputs.sequence_length, values.shape[1])[:, 1:].flatten(0, 1)

    def _masked_entropies(self, allowed: Tensor) -> Tensor:
        """Return target entropies [B, G], because masks leave fewer choices [B, K] in some states than in others."""
        discrete = DISCRETE_TARGET * allowed.log()
        if not self._continuous:
            return discrete
        return torch.cat((self.target_entropies[:1].expand(len(discrete), 1), discrete), dim=1)

    def follow(self) -> None:
        """Move the targets by `tau`. Each step does this, unless `target_update_interval` is above 1."""
        self.target.values.lerp_(self._followed, self.settings.tau)

    @property
    def steps(self) -> int:
        """Number of gradient steps taken so far."""
        return self._adams["critics"].steps

    def gradient_norms(self) -> list[float]:
        """Return the norms of the last gradients of actor and critics."""
        return [float(torch.linalg.vector_norm(flat.gradients)) for flat in (self.actor, self.critics)]

    @contextmanager
    def undone_on_failure(self) -> Iterator[None]:
        """Restore weights and optimizers if a `NotFiniteError` is raised in the `with` block."""
        targets = self.target.values.clone()
        with ExitStack() as adams:
            for adam in self._adams.values():
                adams.enter_context(adam.undone_on_failure())
            try:
                yield
            except NotFiniteError:
                self.target.values.copy_(targets)
                raise

    def finite(self) -> bool:
        """Return True if all weights are finite."""
        # A sum is finite if all its terms are (weights near float32's limit are useless anyway), and fast to compute.
        return bool(torch.stack([flat.values.sum() for flat in self._groups.values()]).isfinite().all())

    def weights(self) -> dict[str, Any]:
        """Return host copies of all weights, keyed by network and parameter name."""
        return {name: flat.state_dict() for name, flat in self._groups.items()}

    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Load the weights that `weights()` returned.

        Raises:
            StageError: if a tensor does not fit; the message names it.
        """
        for name, flat in self._groups.items():
            flat.load(weights[name])

    def state_dict(self) -> dict[str, Any]:
        """Return the weights and the optimizers' states."""
        optimizers = {name: adam.state_dict(self._groups[name].named_views) for name, adam in self._adams.items()}
        return {"weights": self.weights(), "optimizers": optimizers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`.

        Raises:
            StageError: if a tensor does not fit; the message names it.
        """
        self.load_weights(state["weights"])
        for name, adam in self._adams.items():
            adam.load_state_dict(self._groups[name].named_views, state["optimizers"][name], f"optimizer {name}")


def _entropy_terms(actions: ActionSpec, target: float | None) -> tuple[list[float], list[float]]:
    """Return weights and target entropies [G]; for continuous actions, `target` defaults to minus their number."""
    branches = actions.discrete_branches
    weights, targets = [1.0 / len(branches) for _ in branches], [DISCRETE_TARGET * log(size) for size in branches]
    if actions.continuous_size:
        weights.insert(0, 1.0)
        targets.insert(0, -float(actions.continuous_size) if target is None else target)
    return weights, targets


# The networks other than the actor. Each has a separate body, of the kind that the settings describe.


class ValueNetwork(nn.Module):
    """V: the soft value of a state under the policy, for each of S reward signals."""

    def __init__(self, design: PolicyDesign, signals: int) -> None:
        super().__init__()
        design = design.of_critic
        self.body = NetworkBody(design)
        self.head = nn.Linear(self.body.encoding_size, signals)

    def forward(self, inputs: Inputs) -> Tensor:
        """Return the values [B, S] for B rows."""
        encoding, _ = self.body(inputs)
        values: Tensor = self.head(encoding)
        return values


class QNetwork(nn.Module):
    """Q: the value of an action in a state, for each of S reward signals.

    Continuous actions are inputs. For discrete actions, the outputs are the values of all A choices; A is 1 if there
    are none.
    """

    def __init__(self, design: PolicyDesign, signals: int) -> None:
        super().__init__()
        design = design.of_critic
        actions = design.spec.actions
        self._signals = signals
        self._takes_actions = actions.continuous_size > 0
        self.body = NetworkBody(design, extra=actions.continuous_size)
        self.head = nn.Linear(self.body.encoding_size, signals * max(1, actions.mask_size))

    def forward(self, inputs: Inputs, continuous: Tensor) -> Tensor:
        """Return the values [B, S, A] for B rows with continuous actions [B, C]."""
        encoding, _ = self.body(inputs, continuous if self._takes_actions else None)
        values: Tensor = self.head(encoding)
        return values.view(len(values), self._signals, -1)


class Critics(nn.Module):
    """Both Q networks, and V if V is learned. One optimizer trains them all."""

    def __init__(self, design: PolicyDesign, signals: int, values: bool) -> None:
        super().__init__()
        self.q1 = QNetwork(design, signals)
        self.q2 = QNetwork(design, signals)
        if values:
            self.value = ValueNetwork(design, signals)  # last: its parameters are the end of the flat vector


class EntropyCoefficients(nn.Module):
    """G entropy coefficients: one for all continuous actions together, if any, then one per discrete branch."""

    def __init__(self, design: PolicyDesign, initial: float) -> None:
        super().__init__()
        actions = design.spec.actions
        groups = (actions.continuous_size > 0) + len(actions.discrete_branches)
        self.logs = nn.Parameter(torch.full((groups,), log(initial)))


def drawn_for(actions: ActionSpec, network: Network) -> Network:
    """Draw new weights for a network, depending on the kinds of actions; its encoders and memory do not change.

    With only continuous actions, hidden layers and heads are drawn uniformly within ±1/sqrt(fan_in), as torch does.
    ML-Agents' weights are 1.7 times as large, and even larger for value heads. Q's values for untried actions are then
    large compared with the first learned values, which delays learning (docs/learning.md). The values of discrete
    choices are outputs, and are learned sooner with ML-Agents' weights, which hidden layers already have. With both
    kinds of actions, value heads also get ML-Agents' weights (Xavier uniform, biases 0). With memory, previous actions,
    which ML-Agents' networks do not get, have zero weights at first. Otherwise observations, and the action that Q
    evaluates, would be a small part of the inputs, which would delay learning (docs/learning.md).
    """
    if actions.discrete_branches:
        if actions.continuous_size:
            for body in _bodies(network):
                body.start_without_previous_actions()
            for head in _linear(network, "head"):
                nn.init.xavier_uniform_(head.weight)
                nn.init.zeros_(head.bias)
        return network
    for body in _bodies(network):
        for layer in body.layers:
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
    for head in _linear(network, "head", "action"):
        head.reset_parameters()
    return network


def _bodies(network: nn.Module) -> list[NetworkBody]:
    return [module for module in network.modules() if isinstance(module, NetworkBody)]


def _linear(network: nn.Module, *names: str) -> list[nn.Linear]:
    """Return all linear layers with these names in the network."""
    modules = network.named_modules()
    return [module for path, module in modules if isinstance(module, nn.Linear) and path.rpartition(".")[2] in names]


def check_actions(behavior: str, actions: ActionSpec, target_entropy: float | None) -> None:
    """Reject continuous actions that SAC's policies can't scale, and a target entropy without continuous actions.

    Raises:
        StageError: if an action has no bounds, or the setting does not apply; the message names the actions or the
            setting.
    """
    if target_entropy is not None and not actions.continuous_size:
        raise StageError(
            f"{behavior}: hyperparameters.target_entropy: {target_entropy:g} applies to continuous actions, and there "
            "are none; for discrete actions the target is always a fifth of the largest entropy; remove the setting"
        )
    if actions.unbounded:
        several = len(actions.unbounded) > 1
        which = f"action{'s' * several} {', '.join(map(str, actions.unbounded))} {'have' if several else 'has'}"
        raise StageError(
            f"{behavior}: sac draws continuous actions from [-1, 1] and scales them to the environment's bounds, but "
            f"{which} no finite bounds on both sides (of {actions.continuous_size} actions, counted from 0): give the "
            "environment a bounded action space, for instance with a wrapper in environment.wrappers "
            "(docs/algorithms.md shows one; gymnasium.wrappers:ClipAction and environment.action_bounds: clip remove "
            "bounds), or use trainer_type: ppo"
        )


# The losses and their parts, as pure functions of tensors. B: rows; S: reward signals; A: choices of K discrete
# branches; G: entropy coefficients.


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean of values [B, ...] without padding, a scalar; 0 if all rows are padding."""
    if mask is None:
        return values.mean()
    rows = values.reshape(len(values), -1).mean(dim=1)
    return (rows * mask).sum() / mask.sum().clamp(min=1.0)


def taken_values(q: Tensor, choices: Sequence[Tensor]) -> Tensor:
    """Return the value [B, S] of the actions taken, averaged over branches.

    Args:
        q: [B, S, A] values, given the continuous actions taken.
        choices: for each branch, the index [B, 1] of the choice among all A choices.
    """
    if not choices:
        return q.squeeze(2)
    index = choices[0] if len(choices) == 1 else torch.cat(tuple(choices), dim=1)
    return q.gather(2, index.unsqueeze(1).expand(-1, q.shape[1], -1)).mean(dim=2)


def expected_values(q: Tensor, probabilities: Tensor | None, branches: int) -> Tensor:
    """Return the value [B, S] under the policy: Σ π(a)·Q(a) over a branch's choices, averaged over branches.

    Args:
        q: [B, S, A] values, given continuous actions drawn from the policy.
        probabilities: [B, A] probabilities of the discrete choices, 0 where forbidden; None if there are none.
        branches: K, the number of branches.
    """
    if probabilities is None:
        return q.squeeze(2)
    return torch.bmm(q, probabilities.unsqueeze(2)).squeeze(2) / branches


def soft_values(expected: Tensor, negentropies: Tensor, coefficients: Tensor, weights: Tensor) -> Tensor:
    """Return the soft value of a state under the policy, E[Q(s, a)] - Σ α·E[log π], [B, S].

    The entropy has the same sign for continuous and discrete actions. V learns this value, and the policy maximises it.

    Args:
        expected: [B, S] E[Q(s, a)] of the smaller Q.
        negentropies: [B, G] negative entropies: the log-probability of the continuous actions drawn, and each branch's
            Σ π log π.
        coefficients: [G] α.
        weights: [G] 1 for continuous actions, 1 / K for each branch.
    """
    return expected - (negentropies @ (coefficients * weights)).unsqueeze(1)


def half_squared_error(values: Tensor, targets: Tensor, mask: Tensor | None) -> Tensor:
    """Return ½·mean (values - targets)² over rows and signals [B, S], a scalar; targets get no gradient."""
    if mask is None:
        return 0.5 * torch.nn.functional.mse_loss(values, targets)
    return 0.5 * masked_mean((values - targets).square(), mask)


def coefficient_gradients(negentropies: Tensor, targets: Tensor, mask: Tensor | None) -> Tensor:
    """Return the gradients [G] of Σ log α·(H - H_target) with respect to log α; α falls if entropy is above its target.

    This loss is eq. 18 of "Algorithms and Applications", but with log α instead of α, as in all common implementations,
    so the step does not depend on the scale of α.

    Args:
        negentropies: [B, G] -H, as in `soft_values`.
        targets: [G] or [B, G] H_target.
        mask: [B] 1 for rows, 0 for padding; None without padding.
    """
    excess = -(negentropies.detach() + targets)
    return excess.mean(dim=0) if mask is None else mask @ excess / mask.sum().clamp(min=1.0)

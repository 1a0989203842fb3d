"""SAC minibatches, made from the replay memory's rows as input to each network, and measurements of gradient steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.queues.messages import Array, TrajectoryBatch
from headrace.queues.specs import ActionSpec
from headrace.stages.policy.design import MASK_PENALTY
from headrace.stages.policy.network.layers import Inputs, to_device
from headrace.stages.policy.observations import EncodedObservations
from headrace.stages.policy.sampling import action_features, environment_actions
from headrace.stages.trainer.intake import ObservationPreprocessor, Transitions, drawn_actions
from headrace.stages.trainer.protocol import Replicas, ReplicaSlice
from headrace.stages.trainer.replay.replay_memory import ReplayedRows, ReplayedSequences
from headrace.stages.trainer.rewards.signal import Extrinsic, RewardSignal
from headrace.stages.trainer.trajectories import AgentTable, add_to_episodes


class ReplayMinibatch(NamedTuple):
    """B rows; with memory, S sequences of L rows each, concatenated. Axis letters as in `update`."""

    actor_inputs: Inputs
    """Normalised observations; with memory, each sequence starts from the actor's recorded memory."""
    critic_inputs: Inputs
    """The same observations; with memory, each sequence starts from zeros, because critics' memories are not
    recorded."""
    target_inputs: Inputs
    """The target network's observations. Without memory, these are the next observations [B]. With memory, each
    sequence has L + 1 rows: its observations, and the next observation of its last row. The memory starts from zeros,
    and a sequence's first row serves only to fill it."""
    continuous: Tensor
    """[B, C] continuous actions as the policy drew them."""
    choices: tuple[Tensor, ...]
    """For each branch, [B, 1] int64: the index of the choice among all branches' choices."""
    penalties: Tensor | None
    """[B, A] penalties added to logits: `MASK_PENALTY` for forbidden choices, else 0; None without masks."""
    allowed: Tensor | None
    """[B, K] the number of allowed choices in each branch; None without masks."""
    mask: Tensor | None
    """[B] 1 for real rows, 0 for padding; None without memory."""


class MinibatchMaker:
    """Makes minibatches for a behaviour.

    Args:
        intake: the intake whose normaliser is applied.
        actions: the behaviour's actions.
        device: the device to learn on.
    """

    def __init__(self, intake: ObservationPreprocessor, actions: ActionSpec, device: str) -> None:
        self._intake = intake
        self._actions = actions
        self._device = device
        self._begins = np.cumsum((0, *actions.discrete_branches))[:-1]
        self._offsets = torch.from_numpy(self._begins).to(device)

    def transitions(self, replayed: ReplayedRows) -> Transitions:
        """Convert the memory's rows to transitions for reward signals, including padding."""
        columns = replayed.columns
        continuous, choices = drawn_actions(self._actions, columns, len(columns["rewards"]))
        return Transitions(
            Inputs.from_encoded(replayed.observations, self._device),
            Inputs.from_encoded(replayed.next_observations, self._device),
            self._tensor(continuous),
            self._tensor(choices.astype(np.int64)),
            self._tensor(columns["rewards"]),
            self._tensor(columns["terminated"].astype(np.float32)),
        )

    def minibatch(self, replayed: ReplayedRows, transitions: Transitions) -> ReplayMinibatch:
        """Convert the memory's rows, which the caller also passes as transitions, to a minibatch for the update."""
        inputs, target = transitions.inputs, transitions.next_inputs
        if self._intake.normalizer is not None:
            inputs = self._normalized(replayed.observations.vectors, inputs)
            target = self._normalized(replayed.next_observations.vectors, target)
        actor, mask = inputs, None
        sequences = replayed.sequences
        if sequences is not None:
            actor, inputs, target = self._with_memory(replayed, sequences, inputs, target)
            mask = self._tensor(sequences.mask.astype(np.float32))
        choices: tuple[Tensor, ...] = ()
        if self._actions.discrete_branches:
            choices = torch.split(transitions.choices + self._offsets, 1, dim=1)
        penalties = allowed = None
        if self._actions.masked:
            masks = replayed.columns["action_masks"]
            penalties = self._tensor(np.where(masks, np.float32(0), MASK_PENALTY))
            allowed = self._tensor(np.add.reduceat(masks, self._begins, axis=1, dtype=np.float32))
        return ReplayMinibatch(actor, inputs, target, transitions.continuous, choices, penalties, allowed, mask)

    def _normalized(self, vectors: Array, inputs: Inputs) -> Inputs:
        return inputs._replace(vectors=self._tensor(self._intake.normalized(vectors)), vectors_rest=None)

    def _with_memory(
        self, replayed: ReplayedRows, sequences: ReplayedSequences, inputs: Inputs, following: Inputs
    ) -> tuple[Inputs, Inputs, Inputs]:
        """Return the inputs of actor, critics and target, given S × L rows' observations and next observations."""
        length = sequences.length
        first = self._features(sequences.previous, "previous_")[:, None]
        taken = self._features(replayed.columns, "")
        before = self._tensor(np.concatenate((first, taken.reshape(len(first), length, taken.shape[1])), axis=1))
        memories = self._tensor(sequences.memories)
        zeros = torch.zeros_like(memories)

        def joined(one: Tensor, other: Tensor) -> Tensor:
            """Return each sequence's first observation and its next observations, as S * (L + 1) rows."""
            parts = (tensor.view(len(first), length, *tensor.shape[1:]) for tensor in (one, other))
            begun, rest = parts
            return torch.cat((begun[:, :1], rest), dim=1).flatten(0, 1)

        inputs = inputs._replace(previous_actions=before[:, :-1].flatten(0, 1), sequence_length=length)
        target = Inputs(
            joined(inputs.vectors, following.vectors),
            tuple(joined(one, other) for one, other in zip(inputs.others, following.others, strict=True)),
            before.flatten(0, 1),
            zeros,
            length + 1,
        )
        return inputs._replace(memories=memories), inputs._replace(memories=zeros), target

    def _features(self, columns: Mapping[str, Array], prefix: str) -> NDArray[np.float32]:
        drawn, choices = drawn_actions(self._actions, columns, len(next(iter(columns.values()))), prefix)
        return action_features(self._actions, environment_actions(self._actions, drawn, squashed=True), choices)

    def _tensor(self, array: Array) -> Tensor:
        return to_device(torch.from_numpy(np.require(array, requirements=("C", "W"))), self._device)


def part_of(replayed: ReplayedRows, rows: int, replicas: Replicas) -> tuple[ReplayedRows, ReplicaSlice, float]:
    """Return a replica's part of a sample: its rows, their position among all rows, and the weight of their mean."""
    sequences = replayed.sequences
    length = 1 if sequences is None else sequences.length
    counted = replicas.part(rows // length)
    here = ReplicaSlice(slice(counted.rows.start * length, counted.rows.stop * length), counted.weight)
    own = replayed.part(here.rows)
    if sequences is None or own.sequences is None:
        return own, here, here.size * here.weight / rows
    return own, here, float(own.sequences.mask.sum() * here.weight / sequences.mask.sum())


# Measurements of gradient steps on minibatches (losses, values and entropies), and their statistics.


LOSSES = ("Policy Loss", "Q1 Loss", "Q2 Loss", "Value Loss")


class UpdateMeasures(NamedTuple):
    """Losses and values from one gradient step, on the device. Axis letters as in `update`."""

    losses: Tensor
    """[4] the losses, in the order of `LOSSES`."""
    q1: Tensor
    """[B, S] the first Q's values of the actions taken."""
    q2: Tensor
    targets: Tensor
    """[B, S] the targets of both Qs."""
    values: Tensor
    """[B, S] V's values; if there is no V, the soft values that V would learn."""
    negentropies: Tensor
    """[B, G] the negative entropies; see `soft_values`."""
    mask: Tensor | None


def statistics_of(
    found: Sequence[UpdateMeasures],
    norms: Sequence[float],
    signals: Sequence[str],
    replicas: Replicas,
    parts: Sequence[tuple[ReplicaSlice, int]],
) -> dict[str, float]:
    """Return statistics of several gradient steps without padding, keyed by statistic name.

    Args:
        found: the measurements of each step; the caller reports the losses.
        norms: the norms of the actor's and the critics' gradients; empty if not measured.
        signals: the reward signals' names.
        replicas: the replicas that took the same steps.
        parts: for each step, this replica's part of the minibatch's rows, and the number of all rows.
    """
    tables = list[Tensor]()
    for each, (here, rows) in zip(found, parts, strict=True):
        columns = [each.q1, each.q2, each.targets, each.values, each.negentropies]
        mask = [] if each.mask is None else [each.mask[:, None]]
        tables.append(replicas.gathered(torch.cat([*columns, *mask], dim=1), here, rows))
    table, width = torch.cat(tables), len(signals)
    if found[0].mask is not None:
        table = table[table[:, -1] > 0, :-1]
    q1, q2, targets, values = (table[:, at * width : (at + 1) * width] for at in range(4))
    of_rows, log_probs = torch.stack([q1, q2, values, (q1 - targets).abs_()]), table[:, 4 * width :].sum(dim=1)
    # Together: fetching each number separately costs as much as a layer, and updates happen every few steps.
    least, greatest = torch.aminmax(of_rows.flatten(1), dim=1)
    per_signal = of_rows.mean(dim=1)  # [4, S]
    ends = torch.stack([least, per_signal.mean(dim=1), greatest], dim=1)
    of_probs = torch.stack([log_probs.min(), log_probs.mean(), log_probs.max()])
    numbers = torch.cat([ends.flatten(), of_probs, per_signal[2]]).tolist()
    statistics = dict[str, float]()
    for what, norm in zip(("Actor", "Critic"), norms, strict=bool(norms)):
        statistics[f"Policy/{what} Gradient Norm"] = norm
    for at, name in enumerate(("Q1", "Q2", "Value", "TD Error", "Log Probability")):
        for kind, number in zip(("Min", "Mean", "Max"), numbers[3 * at : 3 * at + 3], strict=True):
            statistics[f"Policy/{name} {kind}"] = number
    statistics["Policy/Entropy"] = -statistics["Policy/Log Probability Mean"]
    for name, mean in zip(signals, numbers[15:], strict=True):
        statistics[f"Policy/{name.capitalize()} Value"] = mean
    return statistics


# Statistics of an episode's rewards from all signals except the environment's, computed for each piece on arrival.
# Learning does not depend on them: an update recomputes the rewards of the rows that it draws.


BLOCK = 1024
"""Number of rows whose rewards are computed in one pass, because observations may be images."""


class EpisodeRewards:
    """Sums each signal's rewards, multiplied by its strength, over episodes; the environment's reward is left out.

    Args:
        signals: all of the behaviour's signals.
        maker: converts rows to transitions.

    Attributes:
        sums: the sums for unfinished episodes.
    """

    def __init__(self, signals: Sequence[RewardSignal], maker: MinibatchMaker) -> None:
        self._others = [signal for signal in signals if not isinstance(signal, Extrinsic)]
        self._maker = maker
        self.sums = AgentTable(len(self._others), "float64")

    def add(
        self, batch: TrajectoryBatch, rows: EncodedObservations, finals: EncodedObservations, update: int
    ) -> dict[str, list[float]]:
        """Add trajectories; return the sums for the episodes that ended, keyed by statistic name.

        Args:
            batch: the trajectories.
            rows: the observations of their rows.
            finals: the final observation of each trajectory.
            update: the number of updates so far.

        Raises:
            NotFiniteError: if a reward is NaN or infinite.
        """
        if not self._others:
            return {}
        whole, rewards = _as_replayed(batch, rows, finals), np.empty((batch.num_rows, len(self._others)))
        for start in range(0, batch.num_rows, BLOCK):
            block = slice(start, start + BLOCK)
            taken = self._maker.transitions(whole.part(block))
            for column, signal in enumerate(self._others):
                rewards[block, column] = signal.rewards(taken) * signal.strength
        sums = np.add.reduceat(rewards, np.cumsum(batch.lengths) - batch.lengths)
        columns = batch.trajectories
        ended = batch.terminated | batch.truncated
        finished = add_to_episodes(self.sums, columns["agent_ids"], columns["episode_ids"], ended, sums, update)
        return {
            f"Policy/{signal.name.capitalize()} Reward": finished[:, column].tolist()
            for column, signal in enumerate(self._others)
            if len(finished)
        }


def _as_replayed(batch: TrajectoryBatch, rows: EncodedObservations, finals: EncodedObservations) -> ReplayedRows:
    """Convert trajectories to the form of replayed rows, each with its next observation."""
    last = np.cumsum(batch.lengths) - 1
    following = np.minimum(np.arange(batch.num_rows) + 1, batch.num_rows - 1)
    terminated = np.zeros(batch.num_rows, np.bool_)
    terminated[last] = batch.terminated

    def next_of(row: Array, final: Array) -> Array:
        array = row[following]
        array[last] = final
        return array

    others = tuple(next_of(row, final) for row, final in zip(rows.others, finals.others, strict=True))
    columns = {**batch.rows, "terminated": terminated}
    return ReplayedRows(rows, EncodedObservations(next_of(rows.vectors, finals.vectors), others), columns)

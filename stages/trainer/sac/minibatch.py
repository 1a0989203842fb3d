"""The minibatch of one update: rows of the replay memory as tensors, in the form of each network's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.queues.messages import Array
from headrace.queues.specs import ActionSpec
from headrace.stages.policy.actions import action_features, environment_actions
from headrace.stages.policy.layout import MASK_PENALTY
from headrace.stages.policy.network.inputs import Inputs
from headrace.stages.policy.network.transfers import to_device
from headrace.stages.trainer.intake import Intake
from headrace.stages.trainer.sac.replay_memory import ReplayedRows, ReplayedSequences
from headrace.stages.trainer.transitions import Transitions, drawn_actions


@dataclass(frozen=True, slots=True)
class ReplayMinibatch:
    """B rows; with memory S sequences of L rows each, end to end. Axis letters as in `losses`."""

    actor_inputs: Inputs
    """Observations, normalised; with memory, from the actor's recorded memory."""
    critic_inputs: Inputs
    """The same; with memory, from zeros: critics' memories are not recorded, and would be outdated."""
    target_inputs: Inputs
    """The observations that the target network values. Without memory the next ones, [B]; with memory, L + 1 rows for
    each sequence, from zeros: its observations and the one after it. The first of them only fills the memory."""
    continuous: Tensor
    """[B, C] as the policy drew them."""
    choices: tuple[Tensor, ...]
    """Per branch [B, 1] int64: index among the choices of all branches."""
    penalties: Tensor | None
    """[B, A] added to logits: `MASK_PENALTY` where a choice was forbidden; None without masks."""
    allowed: Tensor | None
    """[B, K] number of allowed choices of each branch; None without masks."""
    mask: Tensor | None
    """[B] 1 for rows, 0 for padding; None without memory."""


class MinibatchMaker:
    """Makes minibatches of a behaviour.

    Args:
        intake: its normaliser is applied.
        actions: the behaviour's.
        device: the device to learn on.
    """

    def __init__(self, intake: Intake, actions: ActionSpec, device: str) -> None:
        self._intake = intake
        self._actions = actions
        self._device = device
        self._begins = np.cumsum((0, *actions.discrete_branches))[:-1]
        self._offsets = torch.from_numpy(self._begins).to(device)

    def transitions(self, replayed: ReplayedRows) -> Transitions:
        """Rows of the memory as transitions for reward signals, padding included."""
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
        """The same rows as a minibatch for the update."""
        inputs = self._normalized(replayed.observations.vectors, transitions.inputs)
        target = self._normalized(replayed.next_observations.vectors, transitions.next_inputs)
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

    def _normalized(self, vectors: NDArray[np.float32], inputs: Inputs) -> Inputs:
        if self._intake.normalizer is None:
            return inputs
        return inputs._replace(vectors=self._tensor(self._intake.normalized(vectors)))

    def _with_memory(
        self, replayed: ReplayedRows, sequences: ReplayedSequences, inputs: Inputs, following: Inputs
    ) -> tuple[Inputs, Inputs, Inputs]:
        """Inputs of actor, critics and target, made of the observations and next observations of S × L rows."""
        length = sequences.length
        first = self._features(sequences.previous, "previous_")[:, None]
        taken = self._features(replayed.columns, "")
        before = self._tensor(np.concatenate((first, taken.reshape(len(first), length, taken.shape[1])), axis=1))
        memories = self._tensor(sequences.memories)
        zeros = torch.zeros_like(memories)

        def joined(one: Tensor, other: Tensor) -> Tensor:
            """[S, L + 1]: the first observation of each sequence, and the one after each of its rows."""
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
        """Features [n, P] of actions."""
        drawn, choices = drawn_actions(self._actions, columns, len(next(iter(columns.values()))), prefix)
        return action_features(self._actions, environment_actions(self._actions, drawn, squashed=True), choices)

    def _tensor(self, array: Array) -> Tensor:
        return to_device(torch.from_numpy(np.require(array, requirements=("C", "W"))), self._device)

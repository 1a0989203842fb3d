"""Examples: an expert's steps as inputs of an update, from demonstrations or from a teacher's trajectories.

Actions are those that the learning policy would draw. Without memory an example is a step; with memory it is a sequence
of steps from an empty memory: the expert's memories mean nothing to the pupil.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.queues.messages import Array
from headrace.stages.policy.design import MASK_PENALTY, PolicyDesign
from headrace.stages.policy.network.distributions import categorical_log_probs, gaussian_log_probs
from headrace.stages.policy.network.transfers import Inputs
from headrace.stages.policy.observations import EncodedObservations, Normalizer
from headrace.stages.policy.sampling import action_features, first_action_features, policy_actions
from headrace.stages.trainer.imitation.demonstrations import Demonstrations


class ImitationBatch(NamedTuple):
    """B rows to imitate, on the device; with memory B / L sequences of L rows each, padded at their ends."""

    inputs: Inputs
    continuous: Tensor
    """[B, C] the expert's continuous actions, as the policy would draw them."""
    choices: Tensor
    """[B, branches] int64"""
    penalties: Tensor | None
    """[B, choices] for addition to logits: `MASK_PENALTY` where a choice was forbidden."""
    weights: Tensor | None
    """[B] 1, and 0 for padding; None where no row is padding."""

    def mean(self, values: Tensor) -> Tensor:
        """The mean of values [B] over rows that are not padding: a scalar."""
        if self.weights is None:
            return values.mean()
        return (values * self.weights).sum() / self.weights.sum()


@dataclass(frozen=True)
class Examples:
    """N steps, in order, of runs that follow each other; not normalised."""

    design: PolicyDesign
    """Of the policy that learns."""
    observations: EncodedObservations
    """[N, …]"""
    continuous: NDArray[np.float32]
    """[N, C] as the policy would draw them."""
    choices: NDArray[np.int64]
    """[N, branches]"""
    masks: NDArray[np.bool_] | None
    """[N, choices] true = allowed."""
    previous: NDArray[np.float32] | None
    """[N, P] features of the action before, with memory."""
    rows: NDArray[np.int64]
    """[S, L] the rows of each sequence; its last one over and over where it is shorter. Without memory L is 1."""
    real: NDArray[np.bool_]
    """[S, L] false where it is padding."""

    @classmethod
    def from_runs(
        cls,
        design: PolicyDesign,
        observations: EncodedObservations,
        continuous: NDArray[np.float32],
        choices: NDArray[np.int64],
        masks: NDArray[np.bool_] | None,
        previous: NDArray[np.float32] | None,
        lengths: NDArray[np.int64],
    ) -> Examples:
        """Examples of runs of `lengths` [K] steps, cut to sequences where the policy has a memory."""
        memory = design.settings.memory
        rows, real = sequences(lengths, 1 if memory is None else memory.sequence_length)
        return cls(design, observations, continuous, choices, masks, previous if memory else None, rows, real)

    def __len__(self) -> int:
        """S: sequences, which are steps without memory."""
        return len(self.rows)

    @property
    def steps(self) -> int:
        """N."""
        return len(self.choices)

    def batch(
        self, which: NDArray[np.int64] | slice, normalizer: Normalizer | None, device: str | torch.device
    ) -> ImitationBatch:
        """Some of the sequences, normalised, on a device."""
        rows, real = self.rows[which].reshape(-1), self.real[which].reshape(-1)
        vectors = self.observations.vectors[rows]
        others = tuple(other[rows] for other in self.observations.others)
        inputs = Inputs.from_encoded(
            EncodedObservations(vectors if normalizer is None else normalizer.apply(vectors), others), device
        )
        if self.design.memory_size:
            assert self.previous is not None, "made with memory"
            length = self.rows.shape[1]
            memories = torch.zeros(len(rows) // length, self.design.memory_size, device=device)
            previous = torch.from_numpy(self.previous[rows]).to(device)
            inputs = inputs._replace(previous_actions=previous, memories=memories, sequence_length=length)
        penalties = None if self.masks is None else np.where(self.masks[rows], np.float32(0), MASK_PENALTY)
        return ImitationBatch(
            inputs,
            torch.from_numpy(self.continuous[rows]).to(device),
            torch.from_numpy(self.choices[rows]).to(device),
            None if penalties is None else torch.from_numpy(penalties).to(device),
            None if real.all() else torch.from_numpy(real.astype(np.float32)).to(device),
        )


def examples_of(demonstrations: Demonstrations, design: PolicyDesign) -> Examples:
    """Convert demonstrations for a policy of this design."""
    actions, previous = design.spec.actions, None
    if design.memory_size:
        previous = np.empty((len(demonstrations), design.previous_action_size), np.float32)
        features = action_features(actions, demonstrations.continuous, demonstrations.choices)
        previous[1:] = features[:-1]
        previous[demonstrations.episode_starts] = first_action_features(actions)
    return Examples.from_runs(
        design,
        demonstrations.observations,
        policy_actions(actions, demonstrations.continuous, design.squashed),
        demonstrations.choices,
        demonstrations.masks,
        previous,
        demonstrations.episode_lengths,
    )


def sequences(lengths: Array, longest: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Cut runs that lie end to end into sequences, each run from its start.

    Args:
        lengths: [K] rows of each run, at least 1.
        longest: L, rows of a sequence; the last one of a run may have fewer.

    Returns:
        The rows [S, L] of each sequence, its last row repeated where it is shorter, and [S, L] false for these
        repetitions.
    """
    if longest == 1:
        rows = np.arange(int(lengths.sum()), dtype=np.int64)[:, None]
        return rows, np.ones(rows.shape, np.bool_)
    run_starts = np.cumsum(lengths) - lengths
    starts = [
        start + longest * np.arange(ceil(length / longest)) for start, length in zip(run_starts, lengths, strict=True)
    ]
    first = np.concatenate(starts, dtype=np.int64) if starts else np.empty(0, np.int64)
    last: NDArray[np.int64] = np.repeat(run_starts + lengths - 1, -(-lengths // longest)).astype(np.int64)
    rows = first[:, None] + np.arange(longest)
    real = rows <= last[:, None]
    return np.minimum(rows, last[:, None]), real


# The losses of imitation. Heads are those of `ActorNetwork`: means, log σ if the design is squashed, then the logits of
# each branch.


def cloning_loss(heads: Tensor, batch: ImitationBatch, design: PolicyDesign) -> Tensor:
    """Squared error of the mean action, and cross-entropy of the choices: a scalar.

    Of the continuous actions the mean over dimensions, of the choices that over branches; the two are added.

    ML-Agents uses the squared error of a drawn action. In expectation that is the mean's error plus σ², so it also
    pulls σ towards 0, without end where cloning does not fade out: that ends exploration, and contradicts trainers that
    learn σ for its entropy. The mean's error has the same gradient for the means, without the noise of drawing, and
    leaves σ to the trainer.

    Args:
        heads: [B, H] of the batch's inputs.
        batch: the expert's steps.
        design: of the policy with these heads.
    """
    continuous = design.spec.actions.continuous_size
    terms = []
    if continuous:
        means = heads[:, :continuous]
        error = (torch.tanh(means) if design.squashed else means) - batch.continuous
        terms.append(error.square().mean(dim=1))
    log_probs = _choice_log_probs(heads, batch, design)
    if log_probs:
        terms.append(-torch.cat(log_probs, dim=1).mean(dim=1))
    return batch.mean(terms[0] if len(terms) == 1 else terms[0] + terms[1])


def log_likelihood(heads: Tensor, log_sigma: Tensor | None, batch: ImitationBatch, design: PolicyDesign) -> Tensor:
    """Log-probability [B] that a policy with a plain Gaussian acts as the expert did, all actions together.

    Args:
        heads: [B, H] of the batch's inputs.
        log_sigma: [C] of the continuous actions; None without any.
        batch: the expert's steps.
        design: of the policy with these heads; not squashed.
    """
    columns = _choice_log_probs(heads, batch, design)
    if log_sigma is not None:
        columns.append(gaussian_log_probs(heads[:, : len(log_sigma)], log_sigma, batch.continuous))
    return torch.cat(columns, dim=1).sum(dim=1)


def _choice_log_probs(heads: Tensor, batch: ImitationBatch, design: PolicyDesign) -> list[Tensor]:
    """Log-probability [B, 1] of the expert's choice, for each branch."""
    branches = split_logits(heads, batch, design)
    return [
        categorical_log_probs(branch, batch.choices[:, index : index + 1])[0] for index, branch in enumerate(branches)
    ]


def split_logits(heads: Tensor, batch: ImitationBatch, design: PolicyDesign) -> tuple[Tensor, ...]:
    """Logits [B, choices] of each branch; those of forbidden choices have probability 0."""
    actions = design.spec.actions
    if not actions.discrete_branches:
        return ()
    logits = heads[:, design.head_size - actions.mask_size :]
    if batch.penalties is not None:
        logits = logits + batch.penalties
    return torch.split(logits, list(actions.discrete_branches), dim=1)

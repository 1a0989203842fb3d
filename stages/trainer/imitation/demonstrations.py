"""Demonstrations: recorded steps of an expert, in one form for all file formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.queues.specs import BehaviorSpec
from headrace.stages.policy.observations import EncodedObservations


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """N steps of K trajectories, packed end to end; row order is step order."""

    spec: BehaviorSpec
    observations: EncodedObservations
    """[N, …] the expert's observations; not normalised."""
    final_observations: EncodedObservations
    """[K, …] its observations after the last step of each trajectory."""
    continuous: NDArray[np.float32]
    """[N, C] actions as the environment received them: in [-1, 1] where bounded."""
    choices: NDArray[np.int64]
    """[N, branches]"""
    rewards: NDArray[np.float32]
    """[N]"""
    lengths: NDArray[np.int64]
    """[K] rows of each trajectory."""
    terminated: NDArray[np.bool_]
    """[K] true if it ended by the task's own rules."""
    starts_episode: NDArray[np.bool_]
    """[K] true if it begins an episode instead of continuing the trajectory before it."""
    masks: NDArray[np.bool_] | None = None
    """[N, choices] true where a choice was allowed; None if all were, or if it is unknown."""

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def episode_lengths(self) -> NDArray[np.int64]:
        """[E] rows of each episode, as far as known: of trajectories that continue each other, together."""
        return np.add.reduceat(self.lengths, np.flatnonzero(self.starts_episode))

    @property
    def episode_starts(self) -> NDArray[np.int64]:
        """[E] the first row of each episode."""
        lengths = self.episode_lengths
        return np.cumsum(lengths) - lengths


def joined(parts: Sequence[Demonstrations]) -> Demonstrations:
    """Join demonstrations of one spec, in their order."""
    if len(parts) == 1:
        return parts[0]
    masks = None
    if any(part.masks is not None for part in parts):
        size = parts[0].spec.actions.mask_size
        masks = np.concatenate([np.ones((len(p), size), np.bool_) if p.masks is None else p.masks for p in parts])
    return Demonstrations(
        parts[0].spec,
        _stacked([part.observations for part in parts]),
        _stacked([part.final_observations for part in parts]),
        np.concatenate([part.continuous for part in parts]),
        np.concatenate([part.choices for part in parts]),
        np.concatenate([part.rewards for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.terminated for part in parts]),
        np.concatenate([part.starts_episode for part in parts]),
        masks,
    )


def _stacked(parts: Sequence[EncodedObservations]) -> EncodedObservations:
    others = zip(*(part.others for part in parts), strict=True)
    return EncodedObservations(
        np.concatenate([part.vectors for part in parts]), tuple(np.concatenate(arrays) for arrays in others)
    )

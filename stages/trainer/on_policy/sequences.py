"""Trajectories cut into sequences, as a policy with memory learns from them.

A sequence lies within one trajectory and has at most L rows; the last one of a trajectory may be shorter. In a
minibatch a shorter one is padded at its end, by its last row over and over, whose results never reach a loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from queues.messages import Array
from stages.trainer.on_policy.input_rows import InputRows
from stages.trainer.on_policy.minibatch import Minibatch


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where sequences lie among the N rows of K trajectories. Axis letter: Q sequences, in the order of rows."""

    length: int
    """L"""
    starts: NDArray[np.int64]
    """[Q] first row of each."""
    sizes: NDArray[np.int64]
    """[Q] rows of each, from 1 to L."""
    first: NDArray[np.int64]
    """[K] number of each trajectory's first sequence."""

    @classmethod
    def of(cls, lengths: NDArray[np.integer], length: int) -> Cuts:
        """Cut trajectories of `lengths` [K] rows, each at least 1, that lie end to end."""
        counts = -(-lengths.astype(np.int64) // length)
        first = np.cumsum(counts) - counts
        before = length * (np.arange(int(counts.sum())) - np.repeat(first, counts))
        rows_before = np.cumsum(lengths, dtype=np.int64) - lengths
        starts = np.repeat(rows_before, counts) + before
        sizes = np.minimum(length, np.repeat(lengths, counts) - before)
        return cls(length, starts, sizes, first)

    def __len__(self) -> int:
        return len(self.starts)

    def padded(self, which: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of q sequences: the rows [q, L] that they consist of with their padding, and which [R] of these are real."""
        sizes, steps = self.sizes[which][:, None], np.arange(self.length)
        rows = self.starts[which][:, None] + np.minimum(steps, sizes - 1)
        return rows, np.flatnonzero((steps < sizes).reshape(-1))


class SequenceRollout:
    """What `minibatch.Rollout` is for rows, for sequences: they are shuffled as wholes.

    Args:
        inputs: the N rows, with previous actions.
        targets: float columns [N, width]: `Minibatch`'s from `continuous` to `returns`.
        choices: [N, branches] discrete actions.
        cuts: where the Q sequences lie.
        memories: [Q, m] what the actor remembered before each.
        critic_memories: [Q, m] what the critic remembered before each; None where it shares the actor's.
    """

    def __init__(
        self,
        inputs: InputRows,
        targets: list[Array],
        choices: Array,
        cuts: Cuts,
        memories: Tensor,
        critic_memories: Tensor | None,
    ) -> None:
        self._inputs = inputs
        self._device = inputs.vectors.device
        self._widths = [target.shape[1] for target in targets]
        packed = np.concatenate([target.astype(np.float32, copy=False) for target in targets], axis=1)
        self._targets = torch.from_numpy(packed).to(self._device)
        self._choices = torch.from_numpy(choices.astype(np.int64)).to(self._device)
        self._cuts = cuts
        self._memories = memories
        self._critic_memories = critic_memories

    def __len__(self) -> int:
        """N."""
        return len(self._inputs)

    def epochs(self, count: int, batch_size: int, random: np.random.Generator) -> Iterator[Iterator[Minibatch]]:
        """Per epoch, minibatches of whole sequences in a new random order; what makes no whole one is left out.

        A minibatch has as many sequences as make up `batch_size` rows with their padding, and at least one.
        """
        each = max(1, batch_size // self._cuts.length)
        for _ in range(count):
            order = random.permutation(len(self._cuts))
            yield (self._minibatch(order[at : at + each]) for at in range(0, len(order) - each + 1, each))

    def _minibatch(self, which: NDArray[np.int64]) -> Minibatch:
        padded, real = self._cuts.padded(which)
        rows, chosen = torch.from_numpy(padded.reshape(-1)[real]), torch.from_numpy(which).to(self._device)
        kept = rows.to(self._device)
        choices = self._choices.index_select(0, kept)
        continuous, penalties, old_log_probs, advantages, returns = torch.split(
            self._targets.index_select(0, kept), self._widths, dim=1
        )
        return Minibatch(
            torch.split(choices, 1, dim=1) if choices.shape[1] else (),
            self._inputs.sequences(padded, self._memories.index_select(0, chosen)),
            continuous,
            penalties,
            old_log_probs,
            advantages,
            returns,
            rows,
            torch.from_numpy(real).to(self._device),
            None if self._critic_memories is None else self._critic_memories.index_select(0, chosen),
            torch.from_numpy(padded.reshape(-1)),
        )

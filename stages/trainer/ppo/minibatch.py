"""One rollout as the update wants it: a single float matrix on the device, gathered once per epoch.

A minibatch is then nothing but views of fixed shape into the gathered rows, made once per update.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from queues.messages import Array


@dataclass(frozen=True, slots=True)
class Minibatch:
    """B rows to learn from, as views. Axis letters as in `loss`."""

    choices: tuple[Tensor, ...]
    """Per branch [B, 1] int64."""
    inputs: Tensor
    """[B, size] encoded, normalised observations."""
    continuous: Tensor
    """[B, C] raw continuous actions."""
    penalties: Tensor
    """[B, choices] added to logits: `MASK_PENALTY` where a choice was forbidden; width 0 without masks."""
    old_log_probs: Tensor
    """[B, P] of the actor that decided; summed to P = 1 for the joint action's ratio."""
    advantages: Tensor
    """[B, 1] normalised."""
    returns: Tensor
    """[B, S] value targets."""


class Rollout:
    """N rows to learn from, on the device.

    Args:
        columns: float columns [N, width] in the order of `Minibatch`'s fields, without `choices`.
        choices: [N, branches] discrete actions.
        device: where to learn.
    """

    def __init__(self, columns: list[Array], choices: Array, device: str) -> None:
        self._widths = [column.shape[1] for column in columns]
        packed = np.concatenate([column.astype(np.float32, copy=False) for column in columns], axis=1)
        self._floats = torch.from_numpy(packed).to(device)
        self._choices = torch.from_numpy(choices.astype(np.int64)).to(device)

    def __len__(self) -> int:
        return len(self._floats)

    def epochs(self, count: int, batch_size: int, random: np.random.Generator) -> Iterator[list[Minibatch]]:
        """Per epoch floor(N / batch_size) minibatches of rows in a new random order; the rest is left out."""
        used = len(self) // batch_size * batch_size
        floats = torch.empty((used, self._floats.shape[1]), device=self._floats.device)
        choices = torch.empty((used, self._choices.shape[1]), dtype=torch.int64, device=self._floats.device)
        minibatches = [
            Minibatch(
                torch.split(chosen, 1, dim=1) if chosen.shape[1] else (),
                *torch.split(part, self._widths, dim=1),
            )
            for part, chosen in zip(torch.split(floats, batch_size), torch.split(choices, batch_size), strict=True)
        ]
        for _ in range(count):
            order = torch.from_numpy(self._shuffled(random)[:used]).to(self._floats.device)
            torch.index_select(self._floats, 0, order, out=floats)
            torch.index_select(self._choices, 0, order, out=choices)
            yield minibatches

    def _shuffled(self, random: np.random.Generator) -> NDArray[np.int64]:
        return random.permutation(len(self))

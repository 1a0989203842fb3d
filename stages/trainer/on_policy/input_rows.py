"""Rows of a rollout as networks take them in: where minibatches and evaluation gather their inputs from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from queues.messages import Array
from stages.policy.network.inputs import Inputs


@dataclass(frozen=True)
class InputRows:
    """N rows of inputs to be gathered from."""

    vectors: Tensor
    """[N, V] normalised, on the device."""
    others: tuple[Tensor, ...]
    """[N, *shape] images and sets, on the host."""
    previous_actions: Tensor | None = None
    """[N, P] on the device; None without memory."""

    @classmethod
    def of(
        cls, vectors: NDArray[np.float32], others: tuple[Array, ...], previous: NDArray[np.float32] | None, device: str
    ) -> InputRows:
        """Rows of arrays; shared with them where the device allows it."""
        return cls(
            torch.from_numpy(vectors).to(device),
            tuple(torch.from_numpy(other) for other in others),
            None if previous is None else torch.from_numpy(previous).to(device),
        )

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def device(self) -> torch.device:
        """Where what is gathered lies."""
        return self.vectors.device

    def sequences(self, rows: NDArray[np.int64], memories: Tensor) -> Inputs:
        """Sequences of rows [q, L] from memories [q, m]."""
        device, flat = self.vectors.device, torch.from_numpy(rows.reshape(-1))
        there = flat.to(device)
        previous = None if self.previous_actions is None else self.previous_actions.index_select(0, there)
        return Inputs(
            self.vectors.index_select(0, there),
            gather_others(self.others, flat, device),
            previous,
            memories,
            rows.shape[1],
        )


def gather_others(others: tuple[Tensor, ...], rows: Tensor, device: str | torch.device) -> tuple[Tensor, ...]:
    """Some rows of images and sets, brought to the device in their own dtype."""
    return tuple(other.index_select(0, rows).to(device) for other in others)

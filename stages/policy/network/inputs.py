"""The inputs of networks, as tensors: the one argument of every network body."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from headrace.stages.policy.network.transfers import to_device
from headrace.stages.policy.observations import EncodedObservations


class Inputs(NamedTuple):
    """B rows. With memory they are B / L sequences of L rows each, end to end, padded at their ends."""

    vectors: Tensor
    """[B, V] all vectors side by side, normalised if the trainer normalises."""
    others: tuple[Tensor, ...] = ()
    """[B, *shape] of each image and set, in the order of the spec, in its own dtype."""
    previous_actions: Tensor | None = None
    """[B, P], only with memory; see `protocol.Recall`."""
    memories: Tensor | None = None
    """[B / L, m] before the first row of each sequence, only with memory."""
    sequence_length: int = 1
    """L."""

    @classmethod
    def from_encoded(cls, encoded: EncodedObservations, device: str | torch.device = "cpu") -> Inputs:
        """Encoded observations on a device, without memory. Arrays are shared where the device allows it."""
        # Arrays from another process are read-only, which torch's tensors can't be.
        others = tuple(
            to_device(torch.from_numpy(np.require(other, requirements=("C", "W"))), device) for other in encoded.others
        )
        return cls(to_device(torch.from_numpy(encoded.vectors), device), others)

    def rows(self, index: Tensor | slice) -> Inputs:
        """Some of the rows, without memory."""
        return Inputs(self.vectors[index], tuple(other[index] for other in self.others))

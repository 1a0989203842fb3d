"""Rows of a rollout with their mates: where minibatches and evaluation gather what the critic judges."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stages.policy.network.inputs import Inputs
from stages.trainer.on_policy.input_rows import InputRows, gather_others
from stages.trainer.poca.critic import Teams
from stages.trainer.poca.mates import Mates


class TeamRows:
    """N agents at their moments, with their mates.

    Args:
        inputs: what each saw.
        actions: [N, P] what each did.
        mates: who was there beside each; numbers of the same N.
        own: [N] whether the agent itself is there.
        largest: how many members a group has had at most.
    """

    def __init__(self, inputs: InputRows, actions: Tensor, mates: Mates, own: NDArray[np.bool_], largest: int) -> None:
        self._inputs = inputs
        self._actions = actions
        self._members = np.concatenate([np.arange(len(own))[:, None], mates.numbers], axis=1)
        self._present = np.concatenate([own[:, None], mates.present], axis=1)
        self._size = (self._present.sum(1, keepdims=True) * (2.0 / largest) - 1.0).astype(np.float32)

    def __len__(self) -> int:
        """N."""
        return len(self._members)

    @property
    def device(self) -> torch.device:
        """Where teams are gathered to."""
        return self._inputs.device

    @property
    def width(self) -> int:
        """Members that each team is gathered with, whether they are there or not."""
        return int(self._members.shape[1])

    def teams(self, rows: NDArray[np.int64], memories: Tensor | None = None, length: int = 1) -> Teams:
        """The teams of agents' rows [B], in sequences of `length` from memories [B / length, 2m]."""
        # Whoever is in several of the teams is encoded once.
        distinct, places = np.unique(self._members[rows], return_inverse=True)
        device, numbers = self.device, torch.from_numpy(distinct)
        there = numbers.to(device)
        others = gather_others(self._inputs.others, numbers, device)
        return Teams(
            Inputs(self._inputs.vectors.index_select(0, there), others),
            self._actions.index_select(0, there),
            torch.from_numpy(places.reshape(len(rows), self.width)).to(device),
            torch.from_numpy(self._present[rows]).to(device),
            torch.from_numpy(self._size[rows]).to(device),
            memories,
            length,
        )

    def sequences(self, rows: NDArray[np.int64], memories: Tensor) -> Teams:
        """Sequences of rows [q, L] from memories [q, 2m]."""
        return self.teams(rows.reshape(-1), memories, rows.shape[1])

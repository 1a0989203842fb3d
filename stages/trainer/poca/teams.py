"""A rollout's rows with their mates: what the critic of groups takes in, for evaluation and in minibatches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.stages.policy.network.inputs import Inputs
from headrace.stages.policy.network.transfers import to_device
from headrace.stages.trainer.on_policy.minibatches import InputRows, Minibatch, MinibatchSource, gather_others
from headrace.stages.trainer.poca.mates import Mates
from headrace.stages.trainer.poca.network import Teams
from headrace.stages.trainer.replicas import SINGLE_TRAINER, Replicas


class TeamRows:
    """N agents at their moments, with their mates.

    Args:
        inputs: their observations.
        actions: [N, P] their actions.
        mates: numbers of the same N.
        own: [N] true if the agent itself is there.
        largest: members of the largest group so far.
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
        """The device that gathered teams lie on."""
        return self._inputs.device

    @property
    def width(self) -> int:
        """Members that each team is gathered with, present or not."""
        return int(self._members.shape[1])

    def teams(self, rows: NDArray[np.int64], memories: Tensor | None = None, length: int = 1) -> Teams:
        """The teams of agents' rows [B], in sequences of `length` from memories [B / length, 2m]."""
        # An agent in several of the teams is encoded once.
        distinct, places = np.unique(self._members[rows], return_inverse=True)
        device, numbers = self.device, torch.from_numpy(distinct)
        there = to_device(numbers, device)
        others = gather_others(self._inputs.others, numbers, device)
        return Teams(
            Inputs(self._inputs.vectors.index_select(0, there), others),
            self._actions.index_select(0, there),
            to_device(torch.from_numpy(places.reshape(len(rows), self.width)), device),
            to_device(torch.from_numpy(self._present[rows]), device),
            to_device(torch.from_numpy(self._size[rows]), device),
            memories,
            length,
        )

    def sequences(self, rows: NDArray[np.int64], memories: Tensor) -> Teams:
        """Sequences of rows [q, L] from memories [q, 2m]."""
        return self.teams(rows.reshape(-1), memories, rows.shape[1])


@dataclass(frozen=True, slots=True)
class GroupMinibatch:
    """R rows to learn from."""

    own: Minibatch
    """The rows for the actor."""
    teams: Teams
    """[B, …] the same rows for the critic, or more where sequences are padded."""
    old_baselines: Tensor
    """[R, S] the critic's before the update."""

    @property
    def rows(self) -> Tensor:
        """[R] numbers of the rows in the rollout, on the host."""
        return self.own.rows

    @property
    def share(self) -> float:
        """Weight of the means over its rows among those of all replicas."""
        return self.own.share

    @property
    def together(self) -> Tensor | None:
        """[…] numbers of the rows of all replicas, on the host; None where they are `rows`."""
        return self.own.together


class GroupRollout:
    """N rows to learn from.

    Args:
        rollout: the rows for the actor.
        teams: the same rows for the critic.
        baselines: [N, S] the critic's before the update.
    """

    def __init__(self, rollout: MinibatchSource[Minibatch], teams: TeamRows, baselines: NDArray[np.float64]) -> None:
        self._rollout = rollout
        self._teams = teams
        self._baselines = to_device(torch.from_numpy(baselines.astype(np.float32)), teams.device)

    def epochs(
        self, count: int, batch_size: int, random: np.random.Generator, replicas: Replicas = SINGLE_TRAINER
    ) -> Iterator[Iterable[GroupMinibatch]]:
        """Per epoch the minibatches of the actor's rollout, each with its teams."""
        for minibatches in self._rollout.epochs(count, batch_size, random, replicas):
            yield map(self._with_teams, minibatches)

    def _with_teams(self, own: Minibatch) -> GroupMinibatch:
        rows = own.rows if own.padded is None else own.padded
        teams = self._teams.teams(rows.numpy(), own.critic_memories, own.inputs.sequence_length)
        return GroupMinibatch(own, teams, self._baselines.index_select(0, to_device(own.rows, self._baselines.device)))

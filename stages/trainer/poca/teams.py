"""A rollout's rows with their teammates: the group critic's input, both for evaluation and in minibatches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headrace.stages.policy.network.layers import Inputs, to_device
from headrace.stages.trainer.intake import InputRows, gather_others
from headrace.stages.trainer.on_policy.minibatches import Minibatch, MinibatchSource
from headrace.stages.trainer.on_policy.rollout_buffer import RolloutBuffer
from headrace.stages.trainer.poca.network import Teams
from headrace.stages.trainer.protocol import SINGLE_TRAINER, Replicas


class TeamRows:
    """N agents, each at one moment, with their teammates.

    Args:
        inputs: the agents' observations.
        actions: [N, P] the agents' actions.
        mates: the teammates, as indices among the same N.
        own: [N] true if the agent itself is present.
        largest: the number of members of the largest group so far.
    """

    def __init__(self, inputs: InputRows, actions: Tensor, mates: Mates, own: NDArray[np.bool_], largest: int) -> None:
        self._inputs = inputs
        self._actions = actions
        self._members = np.concatenate([np.arange(len(own))[:, None], mates.numbers], axis=1)
        self._present = np.concatenate([own[:, None], mates.present], axis=1)
        self._size = (self._present.sum(1, keepdims=True) * (2.0 / largest) - 1.0).astype(np.float32)

    def __len__(self) -> int:
        """Return the number of rows, N."""
        return len(self._members)

    @property
    def device(self) -> torch.device:
        """The device that holds gathered teams."""
        return self._inputs.device

    @property
    def width(self) -> int:
        """The number of members gathered for each team, including absent ones."""
        return int(self._members.shape[1])

    def teams(self, rows: NDArray[np.int64], memories: Tensor | None = None, length: int = 1) -> Teams:
        """Gather the teams of agents' rows [B], in sequences of `length` that start with memories [B / length, 2m]."""
        # An agent in several teams is encoded once.
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
        """Gather sequences of rows [q, L] that start with memories [q, 2m]."""
        return self.teams(rows.reshape(-1), memories, rows.shape[1])


@dataclass(frozen=True, slots=True)
class GroupMinibatch:
    """R rows to learn from, with their teams."""

    own: Minibatch
    """The rows for the actor."""
    teams: Teams
    """[B, …] the same rows for the critic; B exceeds R if sequences are padded."""
    old_baselines: Tensor
    """[R, S] the critic's baselines before the update."""

    @property
    def rows(self) -> Tensor:
        """[R] indices of the minibatch's rows in the rollout, on the host."""
        return self.own.rows

    @property
    def share(self) -> float:
        """Weight of means over the minibatch's rows, relative to all replicas' rows."""
        return self.own.share

    @property
    def together(self) -> Tensor | None:
        """[…] indices of all replicas' rows, on the host; None if equal to `rows`."""
        return self.own.together


class GroupRollout:
    """N rows to learn from, with their teams.

    Args:
        rollout: the rows for the actor.
        teams: the same rows for the critic.
        baselines: [N, S] the critic's baselines before the update.
    """

    def __init__(self, rollout: MinibatchSource[Minibatch], teams: TeamRows, baselines: NDArray[np.float64]) -> None:
        self._rollout = rollout
        self._teams = teams
        self._baselines = to_device(torch.from_numpy(baselines.astype(np.float32)), teams.device)

    def epochs(
        self, count: int, batch_size: int, random: np.random.Generator, replicas: Replicas = SINGLE_TRAINER
    ) -> Iterator[Iterable[GroupMinibatch]]:
        """Yield, for each epoch, the minibatches of the actor's rollout, each with its teams."""
        for minibatches in self._rollout.epochs(count, batch_size, random, replicas):
            yield map(self._with_teams, minibatches)

    def _with_teams(self, own: Minibatch) -> GroupMinibatch:
        rows = own.rows if own.padded is None else own.padded
        teams = self._teams.teams(rows.numpy(), own.critic_memories, own.inputs.sequence_length)
        return GroupMinibatch(own, teams, self._baselines.index_select(0, to_device(own.rows, self._baselines.device)))


# The members of a group at one moment, found by sorting. A moment is a tick of one actor. Teammates are members of the
# same group at the same moment. Axis letters: n members (a buffer's rows, or its trajectories at their ends); M
# teammates in the largest group.

NO_ACTOR = -1
"""The source assigned to rows from before a resume."""


@dataclass(frozen=True, slots=True)
class Mates:
    """The teammates of each of n members."""

    numbers: NDArray[np.int64]
    """[n, M] indices of each member's teammates, padded with the member's own index if it has fewer than M."""
    present: NDArray[np.bool_]
    """[n, M] true where the teammate exists."""

    def sums(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Sum values [n] over each member's teammates; return the sums [n]."""
        found: NDArray[np.float32] = np.where(self.present, values[self.numbers], np.float32(0)).sum(1)
        return found


def mates_of(sources: NDArray[np.int64], group_ids: NDArray[np.int64], ticks: NDArray[np.int64]) -> Mates:
    """Find all members' teammates, which have the same source, group and tick. Group 0 stands for no group.

    Args:
        sources: [n] the actor incarnation that each member comes from; ticks are counted separately for each source.
        group_ids: [n] each member's group.
        ticks: [n] the tick of each member.
    """
    n = len(ticks)
    order = np.lexsort((ticks, group_ids, sources))
    begins = np.ones(n, np.bool_)
    begins[1:] = group_ids[order][1:] == 0
    for key in (sources, group_ids, ticks):
        ordered = key[order]
        begins[1:] |= ordered[1:] != ordered[:-1]
    first = np.flatnonzero(begins)
    sizes = np.diff(np.append(first, n))
    group = np.cumsum(begins) - 1
    first, sizes = first[group][:, None], sizes[group][:, None]
    steps = np.arange(1, int(sizes.max(initial=1)))
    # A group's other members follow at distances 1, 2, …, wrapping around.
    places = first + (np.arange(n)[:, None] - first + steps) % sizes
    mates = Mates(np.empty((n, len(steps)), np.int64), np.empty((n, len(steps)), np.bool_))
    mates.present[order] = steps < sizes
    mates.numbers[order] = np.where(steps < sizes, order[places], order[:, None])
    return mates


def row_mates(buffer: RolloutBuffer) -> Mates:
    """Find each row's teammates at the same moment. A teammate whose row is not in the buffer counts as absent."""
    if not buffer.grouped:
        return _none(len(buffer.rows))
    lengths = buffer.trajectories["lengths"]
    sources, group_ids = (buffer.trajectories[name].repeat(lengths) for name in ("sources", "group_ids"))
    return mates_of(sources, group_ids, buffer.rows["ticks"])


def final_mates(buffer: RolloutBuffer) -> Mates:
    """Find each trajectory's teammates, whose trajectories always close at the same moment."""
    trajectories = buffer.trajectories
    if not buffer.grouped:
        return _none(len(trajectories))
    return mates_of(trajectories["sources"], trajectories["group_ids"], trajectories["next_ticks"])


def renumbered(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a buffer's state with moments renumbered in order of arrival, all from a source that no actor has.

    Ticks restart when a run is resumed. After renumbering, rows from before a resume are never teammates of later rows,
    and a resumed trainer has the same state as one that was never interrupted.

    Args:
        state: `RolloutBuffer.state_dict()` of a buffer with groups; not modified.
    """
    rows, trajectories = dict(state["rows"]), dict(state["trajectories"])
    sources = trajectories["sources"]
    rows["ticks"] = _moments(sources.repeat(trajectories["lengths"]), rows["ticks"])
    trajectories["next_ticks"] = _moments(sources, trajectories["next_ticks"])
    trajectories["sources"] = np.full_like(sources, NO_ACTOR)
    return {**state, "rows": rows, "trajectories": trajectories}


def _moments(sources: NDArray[np.int64], ticks: NDArray[np.int64]) -> NDArray[np.int64]:
    _, first, which = np.unique(np.stack([sources, ticks]), axis=1, return_index=True, return_inverse=True)
    numbers: NDArray[np.int64] = first.argsort().argsort()[which.reshape(-1)]
    return numbers


def _none(n: int) -> Mates:
    return Mates(np.empty((n, 0), np.int64), np.empty((n, 0), np.bool_))

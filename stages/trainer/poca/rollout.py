"""A rollout as POCA's update wants it: PPO's, and beside each minibatch the teams that its critic judges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stages.trainer.on_policy.minibatch import Epochs, Minibatch
from stages.trainer.poca.critic import Teams
from stages.trainer.poca.team_rows import TeamRows


@dataclass(frozen=True, slots=True)
class GroupMinibatch:
    """R rows to learn from."""

    own: Minibatch
    """What the actor learns from."""
    teams: Teams
    """[B, …] the same rows for the critic, or B more where sequences are padded."""
    old_baselines: Tensor
    """[R, S] what the critic said before the update."""

    @property
    def rows(self) -> Tensor:
        """[R] their numbers in the rollout, on the host."""
        return self.own.rows


class GroupRollout:
    """N rows to learn from.

    Args:
        rollout: the rows for the actor.
        teams: the same rows for the critic.
        baselines: [N, S] the critic's before the update.
    """

    def __init__(self, rollout: Epochs[Minibatch], teams: TeamRows, baselines: NDArray[np.float64]) -> None:
        self._rollout = rollout
        self._teams = teams
        self._baselines = torch.from_numpy(baselines.astype(np.float32)).to(teams.device)

    def epochs(self, count: int, batch_size: int, random: np.random.Generator) -> Iterator[Iterable[GroupMinibatch]]:
        """Per epoch the minibatches of the actor's rollout, each with its teams."""
        for minibatches in self._rollout.epochs(count, batch_size, random):
            yield map(self._with_teams, minibatches)

    def _with_teams(self, own: Minibatch) -> GroupMinibatch:
        rows = own.rows if own.padded is None else own.padded
        teams = self._teams.teams(rows.numpy(), own.critic_memories, own.inputs.sequence_length)
        return GroupMinibatch(own, teams, self._baselines.index_select(0, own.rows.to(self._baselines.device)))

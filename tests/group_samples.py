"""Trajectories of groups of agents, written out row by row, and a critic of theirs that can be added up by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headrace.queues.messages import TrajectoryBatch
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec

SPEC = BehaviorSpec("Test", (ObservationSpec("o", (1,)),), ActionSpec(1), grouped=True)


@dataclass(frozen=True)
class Piece:
    """A trajectory of one agent."""

    agent: int
    first_tick: int
    """Of its first row; the others follow tick by tick."""
    seen: Sequence[float]
    acted: Sequence[float]
    """As the environment got it, from -1 to 1."""
    rewards: Sequence[float]
    group_rewards: Sequence[float]
    then_seen: float
    ended: str = ""
    """`terminated`, `truncated`, or nothing where it was just cut."""
    group: int = 5
    after: int | None = None
    """The tick at which it was closed, if not the one after its last row's."""
    goes_on: bool = False
    """True if others of the group went on when it ended."""


def batch_of(pieces: Sequence[Piece], source: int = 0) -> TrajectoryBatch:
    """The pieces as one batch."""

    def row_by_row(name: str) -> np.ndarray:
        return np.concatenate([getattr(piece, name) for piece in pieces]).astype(np.float32)

    lengths = np.array([len(piece.seen) for piece in pieces], np.int32)
    closed = [p.first_tick + len(p.seen) if p.after is None else p.after for p in pieces]
    rows = {
        "obs_0": row_by_row("seen")[:, None],
        "continuous_actions": 3 * row_by_row("acted")[:, None],  # as the policy drew it
        "log_probs": np.zeros((lengths.sum(), 1), np.float32),
        "rewards": row_by_row("rewards"),
        "group_rewards": row_by_row("group_rewards"),
        "ticks": np.concatenate([p.first_tick + np.arange(len(p.seen)) for p in pieces]),
    }
    trajectories = {
        "lengths": lengths,
        "agent_ids": np.array([piece.agent for piece in pieces]),
        "episode_ids": np.zeros(len(pieces), np.int64),
        "terminated": np.array([piece.ended == "terminated" for piece in pieces]),
        "truncated": np.array([piece.ended == "truncated" for piece in pieces]),
        "next_obs_0": np.array([[piece.then_seen] for piece in pieces], np.float32),
        "previous_continuous_actions": np.zeros((len(pieces), 1), np.float32),
        "group_ids": np.array([piece.group for piece in pieces]),
        "next_ticks": np.array(closed),
        "group_left": np.array([piece.goes_on or not piece.ended for piece in pieces]),
        "credits": lengths,
    }
    return TrajectoryBatch("Test", source, rows, trajectories)


class Adding:
    """The value is the sum of what those see who are there; in the baseline, of mates' actions too, times ten."""

    def __init__(self, signals: int = 1) -> None:
        self.signals = signals
        self.sizes: list[list[float]] = []

    def evaluate(self, teams: Any) -> tuple[torch.Tensor, None]:
        seen, acted = teams.inputs.vectors[teams.members, 0], teams.actions[teams.members, 0]
        self.sizes.append(teams.size[:, 0].tolist())
        values = (seen * teams.present).sum(1)
        known = seen + 10 * acted
        known[:, 0] = seen[:, 0]
        both = values, (known * teams.present).sum(1)
        return torch.stack(both, dim=1).repeat_interleave(self.signals, dim=1), None

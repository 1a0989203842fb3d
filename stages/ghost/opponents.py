"""Opponent samplers, which choose a snapshot to play against. `config/opponents.py` lists the built-in samplers.

A sampler chooses only among snapshots. Before that, `play_against_latest_model_ratio` decides whether the newest policy
plays instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class Candidate:
    """A snapshot in the window, with its rating and results."""

    number: int
    """The snapshot's number, counted from 0; the newest snapshot has the highest number."""
    rating: float
    """The snapshot's rating, in Elo points."""
    games: int
    """Number of games that learners have played against the snapshot."""
    wins: int
    """Number of games that the learner won against the snapshot."""
    draws: int
    losses: int
    """Number of games that the learner lost against the snapshot."""

    @property
    def beaten(self) -> float:
        """Probability that the learner beats this snapshot: its mean score, smoothed by one extra win and loss."""
        return (self.wins + 0.5 * self.draws + 1.0) / (self.games + 2.0)


class OpponentSampler(Protocol):
    """Chooses opponents. Checkpoints do not save a sampler's attributes."""

    def choose(self, candidates: Sequence[Candidate], random: np.random.Generator) -> int:
        """Choose a snapshot.

        Args:
            candidates: the snapshots in the window, oldest first; never empty.
            random: the only generator that the sampler may use, so equal seeds give equal runs.

        Returns:
            The number of the chosen snapshot.
        """
        ...


class UniformOpponents:
    """ML-Agents' rule: all snapshots in the window are equally likely."""

    def choose(self, candidates: Sequence[Candidate], random: np.random.Generator) -> int:
        """Draw a snapshot uniformly."""
        return candidates[int(random.integers(len(candidates)))].number


class PrioritisedOpponents:
    """Prioritised fictitious self-play: snapshots that the learner tends to lose to are more likely.

    A snapshot that the learner beats with probability p is chosen with a probability proportional to f(p) = (1 - p) ^
    power (Vinyals et al. 2019, "Grandmaster level in StarCraft II", Methods, `f_hard`).

    Args:
        power: 0 makes all snapshots equally likely; higher values favour the hardest ones.
    """

    def __init__(self, power: float = 2.0) -> None:
        self._power = power

    def choose(self, candidates: Sequence[Candidate], random: np.random.Generator) -> int:
        """Draw a snapshot with a probability proportional to f(p)."""
        # Logarithms, because with a high power all weights would underflow to 0.
        logs = self._power * np.log([1.0 - candidate.beaten for candidate in candidates])
        weights = np.exp(logs - logs.max())
        return candidates[int(random.choice(len(candidates), p=weights / weights.sum()))].number

"""Opponent samplers, which choose a snapshot to play against; `config/opponents.py` lists the built-in ones.

A sampler sees only snapshots: `play_against_latest_model_ratio` decides first whether the newest policy plays instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class Candidate:
    """A snapshot in the window, with its record."""

    number: int
    """The snapshot's number, counted from 0; the newest has the highest."""
    rating: float
    """ELO points."""
    games: int
    """Games that learners have played against it."""
    wins: int
    """Games that the learner has won."""
    draws: int
    losses: int
    """Games that the learner has lost."""

    @property
    def beaten(self) -> float:
        """Probability that the learner beats it: its mean score, smoothed by an extra win and an extra loss."""
        return (self.wins + 0.5 * self.draws + 1.0) / (self.games + 2.0)


class OpponentSampler(Protocol):
    """Chooses opponents. Checkpoints do not save its attributes."""

    def choose(self, candidates: Sequence[Candidate], random: np.random.Generator) -> int:
        """Choose a snapshot.

        Args:
            candidates: the window, oldest first; at least one.
            random: the only generator to draw from, so that equal seeds give equal runs.

        Returns:
            The number of the chosen snapshot.
        """
        ...


class UniformOpponents:
    """ML-Agents' rule: all snapshots are equally likely."""

    def choose(self, candidates: Sequence[Candidate], random: np.random.Generator) -> int:
        """Draw a snapshot uniformly."""
        return candidates[int(random.integers(len(candidates)))].number


class PrioritisedOpponents:
    """Prioritised fictitious self-play: snapshots that the learner loses to are more likely.

    A snapshot that the learner beats with probability p is chosen in proportion to f(p) = (1 - p) ^ power (Vinyals et
    al. 2019, "Grandmaster level in StarCraft II", Methods, `f_hard`).

    Args:
        power: 0 makes all snapshots equally likely; higher values favour the hardest ones.
    """

    def __init__(self, power: float = 2.0) -> None:
        self._power = power

    def choose(self, candidates: Sequence[Candidate], random: np.random.Generator) -> int:
        """Draw a snapshot in proportion to f(p)."""
        # Logarithms, because a high power makes all weights underflow to 0.
        logs = self._power * np.log([1.0 - candidate.beaten for candidate in candidates])
        weights = np.exp(logs - logs.max())
        return candidates[int(random.choice(len(candidates), p=weights / weights.sum()))].number

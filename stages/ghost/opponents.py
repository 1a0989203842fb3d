"""Choosing a snapshot to play against: the protocol of opponent samplers, and the built-in ones.

A sampler sees snapshots only. Whether the newest policy plays instead of any of them is decided before, by
`play_against_latest_model_ratio`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class Candidate:
    """A snapshot that may be chosen, and what is known of it."""

    number: int
    """Of the snapshot; they are counted from 0, the newest has the highest."""
    rating: float
    """ELO points."""
    games: int
    """Games that learners have played against it."""
    wins: int
    """Those that the learner has won."""
    draws: int
    losses: int
    """Those that the learner has lost."""

    @property
    def beaten(self) -> float:
        """How probably the learner beats it: its score, smoothed as if one more game had been won and one lost."""
        return (self.wins + 0.5 * self.draws + 1.0) / (self.games + 2.0)


class OpponentSampler(Protocol):
    """Chooses opponents. Whatever it remembers between two calls is not in checkpoints."""

    def choose(self, candidates: Sequence[Candidate], random: np.random.Generator) -> int:
        """Choose a snapshot.

        Args:
            candidates: the window, oldest first; at least one.
            random: the one source of chance to use, so that runs with the same seed are the same.

        Returns:
            The chosen one's number.
        """
        ...


class Uniform:
    """ML-Agents' rule: each snapshot is as likely as the others."""

    def choose(self, candidates: Sequence[Candidate], random: np.random.Generator) -> int:
        """Choose any."""
        return candidates[int(random.integers(len(candidates)))].number


class Prioritised:
    """Prioritised fictitious self-play: rather those that the learner loses to.

    A snapshot that the learner beats with probability p is chosen in proportion to f(p) = (1 - p) ^ power (Vinyals et
    al. 2019, "Grandmaster level in StarCraft II", Methods, `f_hard`).

    Args:
        power: 0 makes all equally likely; the higher, the more it is about the hardest ones.
    """

    def __init__(self, power: float = 2.0) -> None:
        self._power = power

    def choose(self, candidates: Sequence[Candidate], random: np.random.Generator) -> int:
        """Choose by how often each is beaten."""
        # By logarithms, since a high power would make all weights 0.
        logs = self._power * np.log([1.0 - candidate.beaten for candidate in candidates])
        weights = np.exp(logs - logs.max())
        return candidates[int(random.choice(len(candidates), p=weights / weights.sum()))].number


BUILT_IN: dict[str, type[Any]] = {"latest_or_uniform": Uniform, "prioritised": Prioritised}
"""By the word in the YAML; see `config.self_play.SAMPLERS`."""

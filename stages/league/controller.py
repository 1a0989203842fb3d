"""The controller of a league: it keeps payoffs, freezes policies into the pool, resets learners, says who plays whom.

It is pure: main gives it policies and results, and sends what it says; only its pool touches files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.config.league import LeagueSettings
from headrace.queues.messages import Columns, PolicyUpdate
from headrace.stages.league.matchmaking import OWN, weighted
from headrace.stages.league.pool import Member, Pool
from headrace.stages.plain_state import generator_state, restore_generator


@dataclass(frozen=True, slots=True)
class MatchTable:
    """Who plays whom in a learner's games: rows, one of which is drawn for each game."""

    number: int
    """Rises with each change."""
    seats: tuple[int, ...]
    """[n] player code of the seat: `OWN`, or a member in a game that only rates."""
    opponents: tuple[int, ...]
    """[n] player code of the opponent."""
    weights: tuple[float, ...]
    """[n] probability; they add up to 1."""
    members: Mapping[int, Member]
    """Those that rows name, by number."""


@dataclass(frozen=True, slots=True)
class Reset:
    """A learner is to begin anew."""

    learner: str
    weights: PolicyUpdate | None
    """What it begins with; None: its own first weights."""


class LeagueController:
    """The league of one behaviour.

    Args:
        behavior: its name in the environment.
        settings: of the league, with steps of `freeze` (`LeagueSettings.for_steps`).
        pool: the frozen members; brains of the settings become members, too.
        random: decides about resets.
    """

    def __init__(self, behavior: str, settings: LeagueSettings, pool: Pool, random: np.random.Generator) -> None:
        assert all(each.freeze.after and each.freeze.at_most for each in settings.learners.values()), "for_steps"
        self.behavior = behavior
        self.settings = settings
        self.pool = pool
        self._random = random
        self._frozen: dict[str, int] = {}
        self._number = 0
        self._tables: dict[str, MatchTable] = {}
        pool.add_brains(settings.members)

    def receive_policy(self, learner: str, update: PolicyUpdate) -> Reset | None:
        """Take note of a learner's newest policy; freeze it if that is due, and say if the learner is to be reset."""
        freeze = self.settings.learners[learner].freeze
        first = learner not in self._frozen
        if first or update.step - self._frozen[learner] >= (freeze.at_most or 0):
            self._frozen[learner] = update.step
            if not first or freeze.first:
                self.pool.add(update, learner, -1)
        return None

    def rate(self, learner: str, games: Columns) -> list[tuple[str, str, float]]:
        """Count games that an actor of a learner has ended; returns (learner, statistic, value)."""
        return []

    def table(self, learner: str) -> MatchTable | None:
        """Who plays whom in a learner's games; None until there is someone to play."""
        members = self.pool.members
        if not members or learner not in self._frozen:
            return None
        before, numbers = self._tables.get(learner), tuple(member.number for member in members)
        if before is None or before.opponents != numbers:
            self._number += 1
            weights = tuple(weighted([0.5] * len(numbers), "squared").tolist())
            named = {member.number: member for member in members}
            self._tables[learner] = MatchTable(self._number, (OWN,) * len(numbers), numbers, weights, named)
        return self._tables[learner]

    def report(self) -> dict[str, Any]:
        """The league as plain data for JSON."""
        return {"behavior": self.behavior, "members": self.pool.state_dict(), "mixture": [*self.mixture().items()]}

    def mixture(self) -> dict[int, float]:
        """The members that stand for the league, each with its probability."""
        first = next(iter(self.settings.learners))
        numbers = [member.number for member in self.pool.members if member.learner == first]
        return {number: 1 / len(numbers) for number in numbers}

    def state_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "members": self.pool.state_dict(),
            "frozen": dict(self._frozen),
            "number": self._number,
            "random": generator_state(self._random),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`."""
        self.pool.restore(state["members"])
        self._frozen = {str(name): int(step) for name, step in state["frozen"].items()}
        self._number = int(state["number"])
        restore_generator(self._random, state["random"])

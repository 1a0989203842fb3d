"""Who plays whom: what the controller of a league tells the actors of a learner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.stages.league.pool import Member


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
    """[n] probability; those of opponents of one behaviour add up to 1."""
    members: Mapping[int, Member]
    """Those that rows name, by number."""

    @property
    def rows(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]:
        """All but the number: what tables of the same games have in common."""
        return self.seats, self.opponents, self.weights


def made_table(
    number: int,
    seats: Sequence[int],
    opponents: Sequence[int],
    weights: Sequence[float],
    members: Mapping[int, Member],
) -> MatchTable:
    """Make a table; `members` are all of the pool, by number."""
    named = {player: members[player] for player in sorted({*seats, *opponents}) if player >= 0}
    return MatchTable(number, tuple(seats), tuple(opponents), tuple(weights), named)

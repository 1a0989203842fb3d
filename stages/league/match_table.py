"""Match tables, which the controller of a league sends to a learner's actors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.stages.league.pool import Member


@dataclass(frozen=True, slots=True)
class MatchTable:
    """The matches for a learner's games; one row is drawn for each game."""

    number: int
    """The table's number, which increases with each change."""
    seats: tuple[int, ...]
    """[n] player code in the learner's seat: `OWN`, or a member's code if the game is played only for ratings."""
    opponents: tuple[int, ...]
    """[n] player code of the opponent."""
    weights: tuple[float, ...]
    """[n] probability of the row; the probabilities of one behaviour's opponents add up to 1."""
    members: Mapping[int, Member]
    """The members in the rows, keyed by number."""

    @property
    def rows(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]:
        """Everything except the number; equal for tables with the same matches."""
        return self.seats, self.opponents, self.weights


def made_table(
    number: int,
    seats: Sequence[int],
    opponents: Sequence[int],
    weights: Sequence[float],
    members: Mapping[int, Member],
) -> MatchTable:
    """Make a table; `members` is the entire pool, keyed by number."""
    named = {player: members[player] for player in sorted({*seats, *opponents}) if player >= 0}
    return MatchTable(number, tuple(seats), tuple(opponents), tuple(weights), named)

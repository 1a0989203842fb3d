"""The payoff table of a league: each player's results against each other player."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Columns

Floats = NDArray[np.float64]

SMOOTHING = 2.0
"""Number of games, half of them won, that are added to smooth a probability.

Without these games, a single loss would make the probability 0.
"""
INHERITED = 50.0
"""Maximum weight, in games, of the results that a member inherits from its learner, until its own games replace
them."""


@dataclass(slots=True)
class _Pair:
    """The record of one player's games against another, in which earlier games may have less weight."""

    games: int = 0
    """Number of games."""
    weight: float = 0.0
    """Total weight of the games."""
    total: float = 0.0
    """Weighted sum of the games' values."""
    recent_weight: float = 0.0
    recent_total: float = 0.0
    """Weighted sum of the values since the learner was last frozen."""
    inherited_weight: float = 0.0
    inherited_total: float = 0.0
    """Weighted sum of the values that a member inherited from its learner."""
    squares: float = 0.0
    """Weighted sum of the squared values."""

    @property
    def known(self) -> tuple[float, float]:
        """The weight and total, including inherited games until the member's own games replace them."""
        if self.weight >= self.inherited_weight:
            return self.weight, self.total
        return self.inherited_weight, self.inherited_total


_NOBODY = _Pair()
"""The record of a pair that has not played."""


class PayoffTable:
    """Payoffs of ordered pairs of players.

    A player is a member's number, or the negative code of a learner's newest policy. All games between two members have
    the same weight, because members do not change. If one player still learns, each game reduces the weight of earlier
    games.

    Args:
        kind: `win_rate` (a value is 1 for a win, 0.5 for a draw, 0 for a loss) or `mean_return`.
        decay: factor by which each game with a learner reduces the weight of the pair's earlier games.
        smoothing: number of games, half of them won, that are added when a payoff is converted to a probability.
    """

    def __init__(self, kind: str, decay: float, smoothing: float = SMOOTHING) -> None:
        self._by_return = kind == "mean_return"
        self._decay = decay
        self._smoothing = smoothing
        self._pairs: dict[tuple[int, int], _Pair] = {}
        self._range = (np.inf, -np.inf)

    def count(self, player: int, opponent: int, values: Floats, opposite: Floats) -> None:
        """Count games between two players, in the order in which they ended.

        Args:
            player: one of the players; games against itself are ignored.
            opponent: the other player.
            values: [G] `player`'s results.
            opposite: [G] `opponent`'s results.
        """
        if player == opponent or not len(values):
            return
        if self._by_return:
            both = np.concatenate([values, opposite])
            self._range = min(self._range[0], float(both.min())), max(self._range[1], float(both.max()))
        count = len(values)
        decay = self._decay if min(player, opponent) < 0 else 1.0
        weights = decay ** np.arange(count - 1, -1, -1, dtype=np.float64)
        for key, own in (((player, opponent), values), ((opponent, player), opposite)):
            pair = self._pairs.setdefault(key, _Pair())
            more, left = (float(weights.sum()), float(weights @ own)), decay**count
            pair.games += count
            pair.weight, pair.total = pair.weight * left + more[0], pair.total * left + more[1]
            pair.squares = pair.squares * left + float(weights @ own**2)
            pair.recent_weight, pair.recent_total = (
                pair.recent_weight * left + more[0],
                pair.recent_total * left + more[1],
            )

    def games(self, player: int, opponent: int) -> int:
        """Return the number of games counted for a pair, without inherited games."""
        pair = self._pairs.get((player, opponent))
        return 0 if pair is None else pair.games

    def variances(self, pairs: Sequence[tuple[int, int]]) -> Floats:
        """Return the variance [P] of one game's value for each of these pairs, relative to the squared range.

        Each variance is smoothed by two additional games with the mean variance of all these pairs. The mean is
        smoothed by two games with the maximum variance, 1/4, because a few equal results prove little.
        """
        low, high = self._range if self._by_return else (0.0, 1.0)
        known = [self._pairs.get(pair, _NOBODY) for pair in pairs]
        weights = np.array([pair.weight for pair in known])
        least = np.maximum(weights, 1.0)
        means, squares = (np.array([getattr(pair, name) for pair in known]) / least for name in ("total", "squares"))
        sums = weights * np.maximum(squares - means**2, 0.0) / ((high - low) ** 2 if high > low else 1.0)
        mean = (sums.sum() + SMOOTHING / 4) / (weights.sum() + SMOOTHING)
        return np.asarray((sums + SMOOTHING * mean) / (weights + SMOOTHING), np.float64)

    def value(self, player: int, opponent: int) -> float | None:
        """Return a player's win rate or mean return against an opponent; None if it is unknown."""
        pair = self._pairs.get((player, opponent))
        if pair is None:
            return None
        weight, total = pair.known
        return total / weight if weight else None

    def chance(self, player: int, opponent: int) -> float:
        """Return a payoff as a smoothed probability.

        This is the win rate, or the mean return scaled to the range of returns so far. The result is 0.5 if the payoff
        is unknown, and for a player against itself.
        """
        pair = self._pairs.get((player, opponent))
        weight, total = (0.0, 0.0) if pair is None else pair.known
        low, high = self._range if self._by_return else (0.0, 1.0)
        if not weight or high <= low:
            return 0.5
        won = (total - low * weight) / (high - low)
        return (won + self._smoothing / 2) / (weight + self._smoothing)

    def chances(self, player: int, opponents: Iterable[int]) -> list[float]:
        """Return the `chance` against each of these opponents."""
        return [self.chance(player, opponent) for opponent in opponents]

    def matrix(self, players: Sequence[int]) -> Floats:
        """Return the payoff matrix M [n, n] of these players, made antisymmetric: (M - Mᵀ) / 2.

        This is the payoff matrix of a symmetric zero-sum game. Unknown payoffs are 0.
        """
        values = np.array([[self.value(a, b) or 0.0 for b in players] for a in players], np.float64)
        values = values.reshape(len(players), len(players))
        return (values - values.T) / 2

    def matrix_between(self, rows: Sequence[int], columns: Sequence[int]) -> Floats:
        """Return the payoff matrix [n, m] between players on two sides, made zero-sum: (M - Nᵀ) / 2.

        M contains the row players' payoffs, and N the column players'. Unknown payoffs are 0.
        """
        pairs = [[(self.value(a, b) or 0.0) - (self.value(b, a) or 0.0) for b in columns] for a in rows]
        return np.array(pairs, np.float64).reshape(len(rows), len(columns)) / 2

    def inherit(self, member: int, learner: int) -> None:
        """Give a new member its learner's results since the previous freeze; older results belong to an earlier policy.

        Args:
            member: the new member.
            learner: the code of its learner.
        """
        for (a, b), pair in list(self._pairs.items()):
            if learner in (a, b) and pair.recent_weight:
                weight = min(pair.recent_weight, INHERITED)
                total = pair.recent_total * weight / pair.recent_weight
                key = (member, b) if a == learner else (a, member)
                self._pairs[key] = _Pair(inherited_weight=weight, inherited_total=total)
                pair.recent_weight = pair.recent_total = 0.0

    def forget(self, player: int) -> None:
        """Forget a player's results, because it becomes a different player."""
        self._pairs = {key: pair for key, pair in self._pairs.items() if player not in key}

    def state_dict(self) -> dict[str, Any]:
        """Return the entire table as plain data."""
        columns = [field.name for field in fields(_Pair)]
        rows = [[*key, *(getattr(pair, name) for name in columns)] for key, pair in self._pairs.items()]
        return {"pairs": rows, "range": [*self._range]}

    def load_state_dict(self, state: Mapping[str, Any], codes: Mapping[int, int | None]) -> None:
        """Restore the table from `state_dict()`.

        Args:
            state: the plain data.
            codes: maps each learner's earlier code to its current one; None for a learner that no longer exists.
        """
        pairs = {}
        for a, b, games, *sums in state["pairs"]:
            now = codes.get(a, a), codes.get(b, b)
            if now[0] is not None and now[1] is not None:
                pairs[now[0], now[1]] = _Pair(int(games), *map(float, sums))
        self._pairs = pairs
        self._range = float(state["range"][0]), float(state["range"][1])


def duels(games: Columns, own: int, known: range) -> Iterator[tuple[int, int, Floats, Floats]]:
    """Yield (seat, opponent, outcomes [G, 2], returns [G, 2]) for each pair of players; column 0 belongs to the seat.

    Args:
        games: as in `LeagueController.rate`.
        own: the code of the learner whose actors have played; `games` contains -1 instead of this code.
        known: the codes of all players. Games with other players, for example from before a rewind, are omitted.
    """
    players = np.where(games["game_players"] == -1, own, games["game_players"])
    rows, teams = np.arange(len(players))[:, None], players.shape[1]
    seats = games["game_team"].astype(np.int64)[:, None]
    others = (seats + np.arange(1, teams)) % teams  # [G, T - 1], so duels stay in the order of their games
    returns = games["game_returns"].astype(np.float64)
    if "game_outcomes" in games:
        ranks = games["game_outcomes"].astype(np.float64)
        scores = (np.sign(ranks[rows, seats] - ranks[rows, others]) + 1) / 2
    else:
        scores = np.broadcast_to(games["game_outcome"].astype(np.float64)[:, None], others.shape)

    def flat(mine: Any, theirs: Any) -> Any:
        return np.stack(np.broadcast_arrays(mine, theirs), axis=-1).reshape(-1, 2)

    pairs, outcomes = flat(players[rows, seats], players[rows, others]), flat(scores, 1 - scores)
    both = flat(returns[rows, seats], returns[rows, others])
    there = ((pairs < known.stop) & (pairs >= known.start)).all(axis=1)
    for seat, opponent in np.unique(pairs[there], axis=0).tolist():
        chosen = (pairs == (seat, opponent)).all(axis=1)
        yield seat, opponent, outcomes[chosen], both[chosen]

"""Matchmaking: the probability distribution of a learner's opponents (docs/league-rules.md).

A `PayoffTable` has each player's results against each other player. From these payoffs, a meta-solver finds the best
mixture of a population's members. The empirical game is zero-sum. With one population it is symmetric: its payoffs are
an antisymmetric matrix, and its value is 0. With two populations, the rows and the columns are different members with
separate mixtures, and the value can be any number. The `Matchmaker` comes last.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config.league import LeagueSettings, MatchSettings
from headrace.queues.messages import Columns
from headrace.stages.errors import StageError
from headrace.stages.league.pool import Member

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
        for key, results in (((player, opponent), values), ((opponent, player), opposite)):
            pair = self._pairs.setdefault(key, _Pair())
            more, left = (float(weights.sum()), float(weights @ results)), decay**count
            pair.games += count
            pair.weight, pair.total = pair.weight * left + more[0], pair.total * left + more[1]
            pair.squares = pair.squares * left + float(weights @ results**2)
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
        records = [self._pairs.get(pair, _NOBODY) for pair in pairs]
        weights = np.array([pair.weight for pair in records])
        least = np.maximum(weights, 1.0)
        means, squares = (np.array([getattr(pair, name) for pair in records]) / least for name in ("total", "squares"))
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


def duels(games: Columns, code: int, codes: range) -> Iterator[tuple[int, int, Floats, Floats]]:
    """Yield (seat, opponent, outcomes [G, 2], returns [G, 2]) for each pair of players; column 0 belongs to the seat.

    Args:
        games: as in `LeagueController.rate`.
        code: the code of the learner whose actors have played; `games` contains -1 instead of this code.
        codes: the codes of all players. Games with other players, for example from before a rewind, are omitted.
    """
    players = np.where(games["game_players"] == -1, code, games["game_players"])
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
    in_league = ((pairs < codes.stop) & (pairs >= codes.start)).all(axis=1)
    for seat, opponent in np.unique(pairs[in_league], axis=0).tolist():
        chosen = (pairs == (seat, opponent)).all(axis=1)
        yield seat, opponent, outcomes[chosen], both[chosen]


STEP, TIME, LEAST = 0.05, 100.0, 1e-6
"""Settings of projected replicator dynamics: the step size, the total time, and a member's minimum probability."""

_TOLERANCE = 1e-9
"""How far the second linear program may fall short of the first one's value."""


def require(solver: str | None) -> None:
    """Check that a meta-solver can be used.

    Raises:
        StageError: if it needs SciPy, which is not installed.
    """
    if solver == "nash" and importlib.util.find_spec("scipy") is None:
        raise StageError(
            "meta_solver 'nash' needs SciPy, which is not installed: pip install \"headrace[league]\"; or use "
            "'replicator', which does not need SciPy"
        )


def solve(payoffs: Floats, solver: str) -> Floats:
    """Return the probability [n] of each member.

    Args:
        payoffs: [n, n] the row member's payoff against the column member; antisymmetric, n at least 1.
        solver: `nash`, `replicator` or `uniform`.
    """
    largest = np.abs(payoffs).max(initial=0.0)
    if len(payoffs) == 1 or solver == "uniform" or largest == 0:
        return np.full(len(payoffs), 1 / len(payoffs))
    if solver == "nash":  # the value of a symmetric zero-sum game is 0
        return _most_even(payoffs / largest, 0.0)
    return _two_replicators(payoffs / largest)[0]  # both populations stay equal


def solve_two(payoffs: Floats, solver: str) -> tuple[Floats, Floats]:
    """Return the probabilities of the members of two populations that play each other: [n] and [m].

    Args:
        payoffs: [n, m] the row member's payoff against the column member, whose payoff is the negative; n and m at
            least 1.
        solver: `nash`, `replicator` or `uniform`.
    """
    n, m = payoffs.shape
    largest = np.abs(payoffs).max(initial=0.0)
    if solver == "uniform" or largest == 0:
        return np.full(n, 1 / n), np.full(m, 1 / m)
    if solver == "replicator":
        return _two_replicators(payoffs / largest)
    return _best_mixture(payoffs / largest), _best_mixture(-payoffs.T / largest)


def _best_mixture(payoffs: Floats) -> Floats:
    """Return the row player's maximin mixture whose largest probability is smallest, by linear programming.

    The first program finds the value v, the highest guaranteed payoff against every column. The second finds, among
    the mixtures that guarantee v, the one with the smallest largest entry.
    """
    from scipy.optimize import linprog  # an optional dependency

    n, m = payoffs.shape
    against = np.hstack([-payoffs.T, np.ones((m, 1))])  # v - x A <= 0
    bounds = [*[(0, 1)] * n, (-1, 1)]
    solution = linprog([*np.zeros(n), -1.0], against, np.zeros(m), [[*np.ones(n), 0.0]], [1.0], bounds)
    if not solution.success:
        raise StageError(f"the meta-solver found no Nash equilibrium for {n} and {m} members: {solution.message}")
    return _most_even(payoffs, solution.x[n] - _TOLERANCE)


def _most_even(payoffs: Floats, value: float) -> Floats:
    """Return the mixture with the smallest largest entry, among those that guarantee a value against each column.

    Equally strong members therefore get equal probabilities.
    """
    from scipy.optimize import linprog  # an optional dependency

    n, m = payoffs.shape
    solution = linprog(
        c=[*np.zeros(n), 1.0],
        A_ub=np.block([[-payoffs.T, np.zeros((m, 1))], [np.eye(n), -np.ones((n, 1))]]),
        b_ub=[*np.full(m, -value), *np.zeros(n)],
        A_eq=[[*np.ones(n), 0.0]],
        b_eq=[1.0],
        bounds=(0, 1),
    )
    if not solution.success:
        raise StageError(f"the meta-solver found no Nash equilibrium for {n} and {m} members: {solution.message}")
    mixture = np.maximum(solution.x[:n], 0.0)
    return np.asarray(mixture / mixture.sum(), np.float64)


def _two_replicators(payoffs: Floats) -> tuple[Floats, Floats]:
    """Return the time averages of projected replicator dynamics of two populations (Lanctot et al. 2017).

    Both begin with uniform mixtures.
    """
    mixtures = [np.full(size, 1 / size) for size in payoffs.shape]
    totals = [np.zeros(size) for size in payoffs.shape]
    for _ in range(round(TIME / STEP)):
        x, y = mixtures
        value = x @ payoffs @ y
        grown = x * (1 + STEP * (payoffs @ y - value)), y * (1 + STEP * (value - x @ payoffs))
        mixtures = [projected(mixture, LEAST) if mixture.min() < LEAST else mixture for mixture in grown]
        for total, mixture in zip(totals, mixtures, strict=True):
            total += mixture
    return totals[0] / totals[0].sum(), totals[1] / totals[1].sum()


def projected(point: Floats, least: float) -> Floats:
    """Return the mixture nearest to a point, with no probability below `least` (Wang and Carreira-Perpiñán 2013)."""
    n = len(point)
    ranks = np.arange(1, n + 1)
    falling = np.sort(point)[::-1] - least
    shifts = (1 - n * least - np.cumsum(falling)) / ranks
    last = int(np.flatnonzero(falling + shifts > 0)[-1])
    return np.asarray(np.maximum(point - least + shifts[last], 0.0) + least)


Draw = dict[int, float]
"""Maps player codes to probabilities; empty if there are no players."""

OWN = -1
"""The player code of the learner's own newest policy."""
TINY = 1e-10
"""If the weights add up to less than this, all players are equally likely."""
EXPLOITED, FORGOTTEN = 0.3, 0.7
"""Win probabilities against exploiters, and against the learner's past policies, below which a `verify` match picks
them as opponents."""
RATED_AT_ONCE, EXACT = 8, 0.002
"""Maximum number of pairs of members in a table, and the error of a payoff, as a fraction of the payoff range, below
which a pair needs no more games."""
UNLIKELY = 0.3
"""Minimum probability assumed for each member when choosing pairs to rate, as a fraction of the uniform probability.
Even unlikely members are rated, because the mixture may still change."""


def learner_code(index: int) -> int:
    """Return the player code of a learner's newest policy, given the learner's index in the league."""
    return -2 - index


def weighted(chances: Sequence[float], weighting: str) -> Floats:
    """Return the probability of drawing each opponent, from the probabilities of beating it (Vinyals et al. 2019).

    Args:
        chances: [n] the probability of beating each opponent; n is at least 1.
        weighting: `squared`, `variance`, `linear`, `linear_capped` or `uniform`.
    """
    p = np.asarray(chances, np.float64)
    weights = {
        "squared": (1 - p) ** 2,
        "variance": p * (1 - p),
        "linear": 1 - p,
        "linear_capped": np.minimum(0.5, 1 - p),
        "uniform": np.ones_like(p),
    }[weighting]
    total = weights.sum()
    return weights / total if total >= TINY else np.full(len(p), 1 / len(p))


def forgotten(chances: Sequence[float]) -> int:
    """Return how many past policies, counted from the oldest, can show that a learner has forgotten something.

    If a learner has only improved, its win probability decreases from each past policy to the next newer one. So the
    newest policies, over which its win probability keeps decreasing, show no forgetting and are not counted.

    Args:
        chances: the probability of beating each past policy, oldest first.
    """
    return next((i + 1 for i in range(len(chances) - 1, 0, -1) if chances[i - 1] < chances[i]), 0)


class QualityScores:
    """The quality scores of a learner's past opponents (Berner et al. 2019). Beating an opponent lowers its score.

    Args:
        rate: the step size η.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._scores: dict[int, float] = {}

    def probabilities(self, members: Sequence[int]) -> Floats:
        """Return the probabilities [n] of drawing these members: exp(q), normalised."""
        for number in members:  # a new member gets the highest score
            self._scores.setdefault(number, max(self._scores.values(), default=0.0))
        scores = np.array([self._scores[number] for number in members])
        weights = np.exp(scores - scores.max(initial=-np.inf))
        return np.asarray(weights / weights.sum(), np.float64)

    def won(self, member: int, members: Sequence[int]) -> None:
        """Lower a beaten member's score by η / (N p), but at most by 1."""
        p = self.probabilities(members)[members.index(member)]
        self._scores[member] -= min(1.0, self._rate / (len(members) * max(p, TINY)))

    def state_dict(self) -> list[list[Any]]:
        """Return the scores as plain data."""
        return [[number, score] for number, score in self._scores.items()]

    def load_state_dict(self, state: Iterable[Sequence[Any]]) -> None:
        """Restore the scores from `state_dict()`."""
        self._scores = {int(number): float(score) for number, score in state}


@dataclass(slots=True)
class Matchmaker:
    """Finds opponents for learners.

    A **side** is a behaviour of the game. If only one behaviour has a league, there is one side, which is called "" and
    plays itself.
    """

    settings: LeagueSettings
    payoffs: PayoffTable
    members: Sequence[Member] = ()
    """The pool's members."""
    present: Collection[str] = ()
    """Learners that already have a policy."""
    mixture: Mapping[int, float] = field(default_factory=dict)
    """The meta-solver's mixture: probabilities keyed by member number."""
    sides: Mapping[str, str] = field(default_factory=dict)
    """Maps each learner to its side."""
    qualities: dict[str, QualityScores] = field(init=False)
    """The quality scores of each learner's opponents, keyed by learner."""

    def __post_init__(self) -> None:
        self.sides = {name: self.sides.get(name, "") for name in self.settings.learners}
        self.qualities = {name: QualityScores(self.settings.quality_rate) for name in self.settings.learners}

    def code(self, learner: str) -> int:
        """Return the player code that other learners use for a learner's newest policy."""
        return learner_code(list(self.settings.learners).index(learner))

    def rivals(self, learner: str) -> list[str]:
        """Return the sides that a learner plays against: all other sides, or its own side if there is only one."""
        home, sides = self.sides[learner], [*dict.fromkeys(self.sides.values())]
        return [side for side in sides if side != home] or [home]

    def draw(self, learner: str, side: str = "") -> Draw:
        """Return the opponents on `side`, with their probabilities, for a learner's next game.

        If an entry of `matches` has no opponents, its games go to the other entries.
        """
        total: Draw = {}
        for share in self.settings.learners[learner].matches:
            for player, probability in self.opponents(learner, share, side).items():
                total[player] = total.get(player, 0.0) + share.weight * probability
        weight = sum(total.values())
        return {player: share / weight for player, share in total.items() if share > 0}

    def opponents(self, learner: str, share: MatchSettings, side: str = "") -> Draw:
        """Return the opponents on `side`, with their probabilities, for one entry of the learner's `matches`."""
        match share.match:
            case "self":
                return self._itself(learner, side)
            case "meta":
                numbers = [member.number for member in self.members if member.behavior == side]
                return {number: self.mixture[number] for number in numbers if number in self.mixture}
            case "verify":
                return self._verify(learner, share, side)
            case "newest":
                return self._newest(learner, share, side)
            case _:
                members = self.candidates(share, side)
                if share.weighting != "five" or not members:
                    return self._by(learner, members, share.weighting)
                return dict(zip(members, self.qualities[learner].probabilities(members).tolist(), strict=True))

    def candidates(self, share: MatchSettings, side: str = "") -> list[int]:
        """Return the members on `side` that an entry of `matches` may draw."""
        members = [member for member in self.members if member.behavior == side]
        # `against` names a frozen policy by its learner, and a brain by its own name.
        named = share.against
        return [member.number for member in members if named is None or (member.learner or member.name) in named]

    def counterpart(self, learner: str, side: str) -> str:
        """Return a learner's counterpart on `side`: itself, the learner of that name, `main`, or the first learner."""
        if side == self.sides[learner]:
            return learner
        learners = [name for name, its in self.sides.items() if its == side]
        same = side + learner.removeprefix(self.sides[learner])
        return next((name for name in (same, f"{side}.main") if name in learners), learners[0])

    def count_wins(self, learner: str, member: int, wins: int) -> None:
        """Lower the quality score of a member that a learner has beaten, if the learner draws opponents by quality."""
        for share in self.settings.learners[learner].matches:
            for side in self.rivals(learner) if share.weighting == "five" else ():
                members = self.candidates(share, side)
                for _ in range(wins if member in members else 0):
                    self.qualities[learner].won(member, members)

    def forget(self, learner: str) -> None:
        """Forget the payoffs and scores of a learner that is reset."""
        self.payoffs.forget(self.code(learner))
        self.qualities[learner] = QualityScores(self.settings.quality_rate)

    def targets(self, learner: str) -> list[int]:
        """Return the players that a learner must beat to be frozen early.

        If the learner only plays against newest policies, these are the newest policies that it plays against.
        Otherwise these are the members that its `pfsp` entries may draw, or all members if it has no `pfsp` entry.
        """
        shares, sides = self.settings.learners[learner].matches, self.rivals(learner)
        if all(share.match == "newest" for share in shares):
            named = {name for share in shares for side in sides for name in self._others(learner, share, side)}
            return [self.code(name) for name in self.settings.learners if name in named]
        chosen = [share for share in shares if share.match == "pfsp"]
        members = {number for share in chosen for side in sides for number in self.candidates(share, side)}
        return sorted(members) or [member.number for member in self.members if member.behavior in sides]

    def rating_pairs(self, first_side: str = "", second_side: str = "") -> list[tuple[int, int]]:
        """Return the pairs of members whose next game improves the ratings most; pairs that have not played come first.

        The payoff of member i against the mixture x is the sum of x_j M_ij over its opponents j. The mean of a pair's n
        games, each with variance s², adds (x_i² + x_j²) s² / n to the variances of its two members' payoffs, and
        another game reduces this sum by a fraction of 1 / (n + 1) (Neyman 1934, stratified sampling, one game at a
        time). Pairs that add less than `EXACT` squared need no more games.

        Args:
            first_side: the side of the first member of each pair.
            second_side: the side of the second member; equal to `first_side` if there is only one side.
        """
        first, second = (
            [member.number for member in self.members if member.behavior == side] for side in (first_side, second_side)
        )
        pairs = [(a, b) for a in first for b in second if first_side != second_side or a < b]
        if not pairs:
            return []
        evenly = {number: 1 / len(numbers) for numbers in (first, second) for number in numbers}
        likely = {
            number: self.mixture.get(number, 0.0 if self.mixture else even) + UNLIKELY * even
            for number, even in evenly.items()
        }
        games = np.array([self.payoffs.games(*pair) for pair in pairs])
        weights = np.array([likely[a] ** 2 + likely[b] ** 2 for a, b in pairs])
        added = weights * self.payoffs.variances(pairs) / np.maximum(games, 0.5)
        gains = added / (games + 1)
        order = np.lexsort((-gains, games > 0))  # pairs that have not played come first
        return [pairs[index] for index in order[:RATED_AT_ONCE].tolist() if added[index] > EXACT**2]

    def _itself(self, learner: str, side: str) -> Draw:
        """Return the learner itself; on another side, return its counterpart once the counterpart has a policy."""
        counterpart = self.counterpart(learner, side)
        if counterpart == learner:
            return {OWN: 1.0}
        return {self.code(counterpart): 1.0} if counterpart in self.present else {}

    def _verify(self, learner: str, share: MatchSettings, side: str) -> Draw:
        itself = "" if share.against else self.counterpart(learner, side)
        exploiters = self._frozen_of([name for name in self._others(learner, share, side) if name != itself])
        chances = self.payoffs.chances(self.code(learner), exploiters)
        if chances and min(chances) < EXPLOITED:
            return self._by(learner, exploiters, "squared")
        former = self._frozen_of([self.counterpart(learner, side)])
        chances = self.payoffs.chances(self.code(learner), former)
        former = former[: forgotten(chances)]
        if former and min(chances[: len(former)]) < FORGOTTEN:
            return self._by(learner, former, "squared")
        return self._itself(learner, side)

    def _newest(self, learner: str, share: MatchSettings, side: str) -> Draw:
        drawn: Draw = {}
        others = [name for name in self._others(learner, share, side) if name in self.present]
        for name in others:
            code, former = self.code(name), self._frozen_of([name])
            meets = not former or self.payoffs.chance(self.code(learner), code) > share.above
            one = {code: 1.0} if meets else self._by(learner, former, "variance")
            drawn |= {player: probability / len(others) for player, probability in one.items()}
        return drawn

    def _by(self, learner: str, members: Sequence[int], weighting: str) -> Draw:
        if not members:
            return {}
        chances = self.payoffs.chances(self.code(learner), members)
        return dict(zip(members, weighted(chances, weighting).tolist(), strict=True))

    def _others(self, learner: str, share: MatchSettings, side: str) -> list[str]:
        """Return the learners on `side` that an entry of `matches` names, except `learner` itself."""
        learners = [name for name in self.settings.learners if name != learner and self.sides[name] == side]
        return [name for name in learners if name in (share.against or (name,))]

    def _frozen_of(self, learners: Collection[str]) -> list[int]:
        return [member.number for member in self.members if member.learner in learners]

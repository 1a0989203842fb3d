"""Matchmaking: the probability distribution of a learner's opponents (docs/league-rules.md)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config.league import LeagueSettings, MatchSettings
from headrace.stages.league.payoff import PayoffTable
from headrace.stages.league.pool import Member

Floats = NDArray[np.float64]
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
        own, found = self.sides[learner], [*dict.fromkeys(self.sides.values())]
        return [side for side in found if side != own] or [own]

    def draw(self, learner: str, side: str = "") -> Draw:
        """Return the opponents on `side`, with their probabilities, for a learner's next game.

        If an entry of `matches` has no opponents, its games go to the other entries.
        """
        total: Draw = {}
        for share in self.settings.learners[learner].matches:
            for player, probability in self.opponents(learner, share, side).items():
                total[player] = total.get(player, 0.0) + share.weight * probability
        weight = sum(total.values())
        return {player: each / weight for player, each in total.items() if each > 0}

    def opponents(self, learner: str, share: MatchSettings, side: str = "") -> Draw:
        """Return the opponents on `side`, with their probabilities, for one entry of the learner's `matches`."""
        match share.match:
            case "self":
                return self._itself(learner, side)
            case "meta":
                there = [member.number for member in self.members if member.behavior == side]
                return {number: self.mixture[number] for number in there if number in self.mixture}
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
        there = [each for each in self.members if each.behavior == side]
        return [each.number for each in there if share.against is None or _of(each) in share.against]

    def counterpart(self, learner: str, side: str) -> str:
        """Return a learner's counterpart on `side`: itself, the learner of that name, `main`, or the first learner."""
        if side == self.sides[learner]:
            return learner
        there = [name for name, its in self.sides.items() if its == side]
        same = side + learner.removeprefix(self.sides[learner])
        return next((name for name in (same, f"{side}.main") if name in there), there[0])

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

    def rating_pairs(self, own: str = "", side: str = "") -> list[tuple[int, int]]:
        """Return the pairs of members whose next game improves the ratings most; pairs that have not played come first.

        The payoff of member i against the mixture x is the sum of x_j M_ij over its opponents j. The mean of a pair's n
        games, each with variance s², adds (x_i² + x_j²) s² / n to the variances of its two members' payoffs, and
        another game reduces this sum by a fraction of 1 / (n + 1) (Neyman 1934, stratified sampling, one game at a
        time). Pairs that add less than `EXACT` squared need no more games.

        Args:
            own: the side of the first member of each pair.
            side: the side of the second member; equal to `own` if there is only one side.
        """
        first, second = ([member.number for member in self.members if member.behavior == each] for each in (own, side))
        pairs = [(a, b) for a in first for b in second if own != side or a < b]
        if not pairs:
            return []
        evenly = {each: 1 / len(numbers) for numbers in (first, second) for each in numbers}
        likely = {
            each: self.mixture.get(each, 0.0 if self.mixture else even) + UNLIKELY * even
            for each, even in evenly.items()
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
            drawn |= {player: each / len(others) for player, each in one.items()}
        return drawn

    def _by(self, learner: str, members: Sequence[int], weighting: str) -> Draw:
        if not members:
            return {}
        chances = self.payoffs.chances(self.code(learner), members)
        return dict(zip(members, weighted(chances, weighting).tolist(), strict=True))

    def _others(self, learner: str, share: MatchSettings, side: str) -> list[str]:
        """Return the learners on `side` that an entry of `matches` names, except `learner` itself."""
        there = [name for name in self.settings.learners if name != learner and self.sides[name] == side]
        return [name for name in there if name in (share.against or (name,))]

    def _frozen_of(self, learners: Collection[str]) -> list[int]:
        return [member.number for member in self.members if member.learner in learners]


def _of(member: Member) -> str:
    """Return the name that `against` uses for a member: its learner's name, or the name of a brain."""
    return member.learner or member.name

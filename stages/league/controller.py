"""The controller of a league: it keeps payoffs, freezes policies into the pool, resets learners, and assigns opponents.

It does no I/O except through its pool: the main process passes in policies and results, and sends out the decisions.
`Turns` are the learners', if they learn one after another.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from headrace.config.league import FreezeSettings, LeagueSettings, ResetSettings
from headrace.queues.messages import Columns, Matches, PolicyUpdate
from headrace.stages.errors import StageError, blaming
from headrace.stages.league import matchmaking
from headrace.stages.league.matchmaking import OWN, Matchmaker, PayoffTable, duels
from headrace.stages.league.pool import Member, Pool, packed, unpacked
from headrace.stages.plain_state import generator_state, restore_generator


def made_table(
    number: int,
    seats: Sequence[int],
    opponents: Sequence[int],
    weights: Sequence[float],
    members: Sequence[Member],
) -> Matches:
    """Make the message to a learner's actors; `members` is the entire pool, in the order of the numbers."""
    named = {player: asdict(members[player]) for player in sorted({*seats, *opponents}) if player >= 0}
    return Matches(number, tuple(seats), tuple(opponents), tuple(weights), named)


def _rows(matches: Matches) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]:
    return matches.seats, matches.opponents, matches.weights


class Turns:
    """The turns of all learners in a league, in the learners' order.

    A learner's turn ends at the next multiple of its number of steps. So a turn that ends late, because the trainer's
    updates are large, is followed by a shorter one, and all learners get the same number of turns.

    Args:
        steps: the number of trainer steps in a turn, keyed by learner.
    """

    def __init__(self, steps: Mapping[str, int]) -> None:
        self._length = dict(steps)
        self._steps = dict.fromkeys(steps, 0)
        self._done: set[str] = set()
        self.learner = next(iter(steps))
        """Name of the learner whose turn it is."""
        self._end = self._next_end()

    @property
    def waiting(self) -> list[str]:
        """The learners that are waiting for their turn."""
        return [name for name in self._length if name != self.learner]

    def reported(self, learner: str, step: int, done: bool) -> bool:
        """Record a trainer's step, and whether the trainer is done; return True if a new turn begins."""
        self._steps[learner] = step
        (self._done.add if done else self._done.discard)(learner)  # a restarted trainer may not be done any more
        if self.learner not in self._done and self._steps[self.learner] < self._end:
            return False
        names = list(self._length)
        following = names.index(self.learner) + 1
        order = names[following:] + names[:following]
        before, self.learner = self.learner, next((name for name in order if name not in self._done), self.learner)
        self._end = self._next_end()
        return self.learner != before

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data, without the finished learners, because their trainers will report again."""
        return {"learner": self.learner, "end": self._end, "steps": dict(self._steps)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`; if the saved learner no longer exists, the first learner is next."""
        self._steps |= {name: int(step) for name, step in state["steps"].items() if name in self._steps}
        still_learns = state["learner"] in self._length
        self.learner = str(state["learner"]) if still_learns else next(iter(self._length))
        self._end = int(state["end"]) if still_learns else self._next_end()

    def _next_end(self) -> int:
        length = self._length[self.learner]
        return (self._steps[self.learner] // length + 1) * length


log = logging.getLogger(__name__)


@dataclass(slots=True)
class LearnerProgress:
    """A learner's progress since its last freeze."""

    step: int
    """Newest step reported by the learner's trainer."""
    version: int
    """Version of the learner's newest policy."""
    frozen: int
    """The trainer's step at which the last freeze was due; before the first freeze, the step at the start."""
    parent: int = -1
    """Number of the member that the learner descends from; -1 for none."""
    first: int = -1
    """Number of the member with the learner's first policy; -1 if that policy was not frozen."""

    def advance(self, step: int, version: int) -> None:
        """Record the learner's newest policy; a restarted trainer may be a few steps behind."""
        self.step, self.version = step, version
        self.frozen = min(self.frozen, step)

    def freeze(self, freeze: FreezeSettings, member: int, step: int) -> None:
        """Record that the learner has become a member at a trainer step.

        The next interval counts from the step at which the freeze was due, so the number of members does
        not depend on the size of updates.
        """
        late = step - self.frozen - (freeze.at_most or 0)
        self.frozen = step - (late if 0 <= late < (freeze.at_most or 0) else 0)
        self.parent = member


def is_due(freeze: FreezeSettings, steps: int, chances: Sequence[float]) -> bool:
    """Return True if a learner is due to be frozen.

    Args:
        freeze: the conditions, in steps.
        steps: number of steps since the last freeze.
        chances: the learner's probability of beating each opponent.
    """
    after, at_most = freeze.after, freeze.at_most
    if after is None or at_most is None:
        raise ValueError("freeze has no steps; LeagueSettings.for_steps fills them in")
    wins = freeze.win_rate is not None and bool(chances) and min(chances) > freeze.win_rate
    return steps >= at_most or (wins and steps >= after)


def is_reset(reset: ResetSettings | None, random: np.random.Generator) -> bool:
    """Decide at random whether to reset a newly frozen learner; draw no random number if the answer is certain."""
    if reset is None or reset.probability in (0.0, 1.0):
        return reset is not None and reset.probability == 1.0
    return bool(random.random() < reset.probability)


REFRESHED_AFTER, GAMES_A_MEMBER = 32, 8
"""Games that a learner's actors play before its match table is recomputed: a minimum, and a number per member."""
SOLVED_AGAIN = 1.5
"""Factor by which the number of games between members must grow before the mixture is recomputed."""
RARE = 1e-4
"""Members whose probability in the mixture is below this do not play."""


@dataclass(frozen=True, slots=True)
class Freeze:
    """A policy that will become a member of the pool."""

    learner: str
    update: PolicyUpdate
    parent: int
    """Number of the member that the policy descends from; -1 for none."""


@dataclass(frozen=True, slots=True)
class Reset:
    """A learner's restart, from scratch or from other weights."""

    learner: str
    weights: PolicyUpdate | None
    """The learner's initial weights; None to return to its first weights."""


class LeagueController:
    """Controls the league of one behaviour, or of several behaviours in the same game, each of which is a side.

    Args:
        behavior: the behaviour's name in the environment; if there are several, the first behaviour's name.
        settings: the league's settings, with `freeze` in steps (`LeagueSettings.for_steps`).
        pool: the frozen members; the brains in the settings also become members.
        random: the generator for random resets.
        sides: if several behaviours have a league, maps the name of each learner and brain to its behaviour
            (`LeagueGame`).

    Raises:
        StageError: if the meta-solver needs a package that is not installed, or the file of a brain has changed.
    """

    def __init__(
        self,
        behavior: str,
        settings: LeagueSettings,
        pool: Pool,
        random: np.random.Generator,
        sides: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        with blaming("behaviors", behavior, "league", "meta_solver"):
            matchmaking.require(settings.meta_solver)
        self.behavior = behavior
        self.settings = settings
        self.pool = pool
        self._random = random
        self._payoffs = PayoffTable(settings.payoff, settings.decay)
        self._sides = sides
        self._matches = Matchmaker(settings, self._payoffs, sides=sides)
        self._progress: dict[str, LearnerProgress] = {}
        self._newest: dict[str, PolicyUpdate] = {}
        self._sources = {learner.reset.to for learner in settings.learners.values() if learner.reset is not None}
        self._number = 0
        self._tables: dict[str, Matches] = {}
        self._fresh: dict[str, int] = {}
        """Games played by each learner's actors since its table was computed; no entry if the table is out of date."""
        self._member_games, self._solved_games = 0, -1
        """Games between members since the newest joined: now, and when the mixture was last solved (-1 if never)."""
        self._disk_refuses = self._resumed = False
        self.freezing: set[str] = set()
        """Learners with a policy that is being written to the pool."""
        self._add_brains()
        self._follow_pool()

    def note_policy(self, learner: str, update: PolicyUpdate) -> Freeze | None:
        """Record a learner's newest policy.

        Returns:
            The policy to freeze, or None. The learner gets no other policy to freeze until this one has been passed to
            `write` and `frozen`.
        """
        settings, progress = self.settings.learners[learner], self._progress.get(learner)
        if learner in self._sources:
            self._newest[learner] = update.copy()
        begun = self._progress or self.freezing or self._resumed
        if not begun and any(not member.use for member in self.pool.members):
            self.pool.restore(())  # from a run that was killed before its first checkpoint
            self._add_brains()
        if progress is not None:
            progress.advance(update.step, update.version)
        if learner in self.freezing:
            return None
        if progress is None and not settings.freeze.first:
            self._begin(learner, update, -1)
            return None
        if progress is not None:
            chances = self._payoffs.chances(self._matches.code(learner), self._matches.targets(learner))
            if not is_due(settings.freeze, update.step - progress.frozen, chances):
                return None
        self.freezing.add(learner)
        return Freeze(learner, update, -1 if progress is None else progress.parent)

    def write(self, freeze: Freeze) -> Member | OSError:
        """Write a policy into the pool. This changes nothing else, so it may run in a thread, one call at a time.

        Returns:
            The future member, or the disk's error.

        Raises:
            StageError: as for `Pool.write`.
        """
        try:
            return self.pool.write(freeze.update, freeze.learner, freeze.parent, self._matches.sides[freeze.learner])
        except OSError as error:
            return error

    def frozen(self, freeze: Freeze, written: Member | OSError) -> Reset | None:
        """Record that a policy was written; after an error, the league tries to write the learner's next policy.

        Returns:
            The learner's reset if the freeze triggers one, otherwise None.

        Raises:
            StageError: if the learner's first policy could not be written. The learner's games wait for that policy, so
                there would be no next policy to write.
        """
        learner, update = freeze.learner, freeze.update
        progress, settings = self._progress.get(learner), self.settings.learners[learner]
        self.freezing.discard(learner)
        if isinstance(written, OSError):
            self._refused(learner, written, first=progress is None)
            return None
        self._disk_refuses = False
        self.pool.enter(written)
        if progress is None:
            self._begin(learner, update, written.number)
            return None
        progress.freeze(settings.freeze, written.number, update.step)
        self._payoffs.inherit(written.number, self._matches.code(learner))
        reset = self._reset(learner, progress) if is_reset(settings.reset, self._random) else None
        self._follow_pool()
        return reset

    def _begin(self, learner: str, update: PolicyUpdate, first: int) -> None:
        self._progress[learner] = LearnerProgress(update.step, update.version, update.step, first, first)
        self._follow_pool()

    def rate(self, learner: str, games: Columns) -> list[tuple[str, str, float]]:
        """Count finished games that a learner's actors have played.

        Args:
            learner: the learner whose actors played the games.
            games: columns [G] `game_team`, `game_outcome`, and [G, T] `game_players`, `game_returns`; for games between
                more than two teams also `game_outcomes`.

        Returns:
            A (learner, statistic, value) tuple for each statistic.
        """
        if not games or not len(games["game_team"]):
            return []
        code, scores, least = self._matches.code(learner), [], -1 - len(self.settings.learners)
        for seat, opponent, outcomes, returns in duels(games, code, range(least, len(self.pool.members))):
            values = outcomes if self.settings.payoff == "win_rate" else returns
            self._payoffs.count(seat, opponent, values[:, 0], values[:, 1])
            self._member_games += len(values) if seat >= 0 and opponent >= 0 else 0
            if seat == code != opponent:
                scores.append(outcomes[:, 0])
                self._matches.count_wins(learner, opponent, int((outcomes[:, 0] > outcomes[:, 1]).sum()))
        if learner in self._fresh:
            self._fresh[learner] += len(games["game_team"])
        chances = self._payoffs.chances(code, self._matches.targets(learner))
        measures = [("League/Score", float(np.concatenate(scores).mean()))] if scores else []
        measures += [("League/Lowest Chance", min(chances))] if chances else []
        measures.append(("League/Members", float(len(self.pool.members))))
        return [(learner, name, value) for name, value in measures]

    def table(self, learner: str) -> Matches | None:
        """Return the matches for a learner's games; None until there is an opponent."""
        if learner not in self._progress:
            return None
        games = self._fresh.get(learner)
        if games is None or games >= max(REFRESHED_AFTER, GAMES_A_MEMBER * len(self.pool.members)):
            self._solve()
            made, before = self._make_table(learner), self._tables.get(learner)
            if made is None:
                return None
            if before is None or _rows(made) != _rows(before):
                self._number += 1
                self._tables[learner] = made
            self._fresh[learner] = 0
        return self._tables[learner]

    def mixture(self) -> dict[int, float]:
        """Return the members that represent the league, with their probabilities, which add up to 1 for each side.

        With a meta-solver, this is its mixture of the entire pool. Otherwise the mixture has all frozen policies of
        each side's first learner, the n-th weighted by n: linear averaging, as in CFR+ (Tammelin 2014).
        """
        self._solve()
        return self._known_mixture()

    def _known_mixture(self) -> dict[int, float]:
        if self.settings.meta_solver is not None:
            return dict(self._matches.mixture)
        first: dict[str, str] = {}
        for name, side in self._matches.sides.items():
            first.setdefault(side, name)
        mixture: dict[int, float] = {}
        for name in first.values():
            numbers = [member.number for member in self.pool.members if member.learner == name]
            mixture |= {number: 2 * n / (len(numbers) * (len(numbers) + 1)) for n, number in enumerate(numbers, 1)}
        return mixture

    def report(self) -> dict[str, Any]:
        """Return the current state of the league as plain data for JSON, without side effects.

        Returns:
            `learners`: each learner's progress, and its `opponents` with their probabilities in its next game.
            `members`: keyed by number. `players`: row and column names of the matrices `games` and `payoffs` (the row
            player's payoff; null if unknown). `mixture`: pairs of a member's number and its probability.
        """
        codes = {self._matches.code(name): name for name in self.settings.learners}
        labels = codes | {member.number: member.label for member in self.pool.members}
        learners = []
        for name, settings in self.settings.learners.items():
            progress = self._progress.get(name)
            table = self._tables.get(name) or (self._make_table(name) if progress is not None else None)
            rows = [] if table is None else zip(table.seats, table.opponents, table.weights, strict=True)
            met = [[labels.get(opponent, name), weight] for seat, opponent, weight in rows if seat == OWN]
            plain = {} if progress is None else asdict(progress)
            learners.append({"learner": name, "actors": settings.actors, **plain, "opponents": met})
        return {
            "behavior": self.behavior,
            "payoff": self.settings.payoff,
            "learners": learners,
            "members": [{**asdict(member), "label": member.label} for member in self.pool.members],
            "players": [*labels.values()],
            "games": [[self._payoffs.games(a, b) for b in labels] for a in labels],
            "payoffs": [[self._payoffs.value(a, b) for b in labels] for a in labels],
            "mixture": [[number, probability] for number, probability in self._known_mixture().items()],
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data. The members' weights are in the pool's files."""
        tables = {
            name: [table.number, [*table.seats], [*table.opponents], [*table.weights]]
            for name, table in self._tables.items()
        }
        return {
            "learners": [*self.settings.learners],
            "members": self.pool.state_dict(),
            "payoffs": self._payoffs.state_dict(),
            "qualities": {name: scores.state_dict() for name, scores in self._matches.qualities.items()},
            "progress": {name: asdict(progress) for name, progress in self._progress.items()},
            "newest": {name: packed(update) for name, update in self._newest.items()},
            "mixture": [[*entry] for entry in self._matches.mixture.items()],
            "games": [self._member_games, self._solved_games],
            "tables": tables,
            "fresh": dict(self._fresh),
            "number": self._number,
            "random": generator_state(self._random),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict()`.

        Raises:
            StageError: if a member's file is missing, or a brain's file has changed.
        """
        self._resumed = True
        self.pool.restore(state["members"])
        learners = list(self.settings.learners)
        codes = {
            -2 - index: self._matches.code(name) if name in learners else None
            for index, name in enumerate(state["learners"])
        }
        self._payoffs.load_state_dict(state["payoffs"], codes)
        for name in learners:
            self._matches.qualities[name].load_state_dict(state["qualities"].get(name, ()))
        self._progress = {
            name: LearnerProgress(**progress) for name, progress in state["progress"].items() if name in learners
        }
        self._newest = {name: unpacked(data) for name, data in state["newest"].items() if name in self._sources}
        self._number = int(state["number"])
        restore_generator(self._random, state["random"])
        self._follow_pool()
        self._member_games, self._solved_games = map(int, state["games"])
        self._matches.mixture = {int(number): float(share) for number, share in state["mixture"]}
        if learners == list(state["learners"]):
            self._tables = {
                name: made_table(int(number), seats, opponents, weights, self.pool.members)
                for name, (number, seats, opponents, weights) in state["tables"].items()
            }
            self._fresh = {str(name): int(games) for name, games in state["fresh"].items()}
        members = len(self.pool.members)
        self._add_brains()
        if len(self.pool.members) > members:
            self._follow_pool()

    def _add_brains(self) -> None:
        with blaming("behaviors", self.behavior, "league", "members"):
            self.pool.add_brains(self.settings.members, self._sides)

    def _follow_pool(self) -> None:
        """Update the matchmaker to the current members and learners."""
        listed = {(brain.name, brain.use) for brain in self.settings.members}
        members = [member for member in self.pool.members if not member.use or (member.name, member.use) in listed]
        self._matches.members = members
        self._matches.present = self._progress.keys()
        self._member_games, self._solved_games = 0, -1
        self._fresh.clear()

    def _refused(self, learner: str, error: OSError, first: bool) -> None:
        name = learner if self._sides else f"{self.behavior}.{learner}"
        what = f"{name} can't be frozen into {self.pool.folder}: {error.strerror or error}"
        if first:
            raise StageError(f"{what}; its games need this first member: make room there, and start the run again")
        if not self._disk_refuses:
            log.warning("%s. Training continues, and the league retries with each new policy.", what)
        self._disk_refuses = True

    def _reset(self, learner: str, progress: LearnerProgress) -> Reset:
        settings = self.settings.learners[learner].reset
        assert settings is not None, "it was drawn"
        weights = self._newest.get(settings.to)  # None for `start`, and for a learner without a policy
        progress.parent = progress.first if weights is None else self._progress[settings.to].parent
        self._matches.forget(learner)
        return Reset(learner, weights)

    def _solve(self) -> None:
        """Recompute the mixture if the members have changed, or have played many games since the last time."""
        solver, members = self.settings.meta_solver, [member.number for member in self._matches.members]
        due = max(REFRESHED_AFTER, SOLVED_AGAIN * self._solved_games)
        if solver is None or not members or (self._solved_games >= 0 and self._member_games < due):
            return
        sides = dict.fromkeys(self._matches.sides.values())
        listed = [[member.number for member in self._matches.members if member.behavior == side] for side in sides]
        by_side = [numbers for numbers in listed if numbers]
        if len(by_side) == 2:
            mixtures = [*matchmaking.solve_two(self._payoffs.matrix_between(*by_side), solver)]
        else:  # only one side has members
            mixtures = [matchmaking.solve(self._payoffs.matrix(numbers), solver) for numbers in by_side]
        self._matches.mixture = {}
        for numbers, mixture in zip(by_side, mixtures, strict=True):
            likely = np.where(mixture < RARE, 0.0, mixture)
            shares = (likely / likely.sum()).tolist()
            self._matches.mixture |= {number: share for number, share in zip(numbers, shares, strict=True) if share}
        self._solved_games = self._member_games

    def _make_table(self, learner: str) -> Matches | None:
        rows: list[tuple[int, int, float]] = []
        for side in self._matches.rivals(learner):
            draw = self._matches.draw(learner, side)
            if not draw:
                return None
            pairs = self._matches.rating_pairs(self._matches.sides[learner], side) if self.settings.rating else []
            share = self.settings.rating if pairs else 0.0
            rows += [(OWN, player, weight * (1 - share)) for player, weight in sorted(draw.items())]
            rows += [(a, b, share / len(pairs)) for a, b in pairs]
        seats, opponents, weights = zip(*rows, strict=True)
        return made_table(self._number + 1, seats, opponents, weights, self.pool.members)

"""Decides which policy acts for each behaviour id in each game, according to the ghost stages' assignments.

A behaviour without self-play uses its newest policy in every game, and always learns. A behaviour with self-play keeps,
in each game, the mapping that was current at the game's start: opponents stay frozen until the game ends, and the
game's trajectories carry the mapping's stamp. When another team's turn begins, the trainer ignores running games of the
previous turn, which the actor plays to the end.

Brains that do not learn (`stages/brains.py`) may decide in a fraction of the games; a draw at each game's start
determines which brain decides, if any. A game with brains has a variant of the current mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.config.brains import drawn, fills
from headrace.queues.messages import Assignment, Matches, PolicyUpdate
from headrace.queues.specs import BehaviorSpec, behavior_team
from headrace.stages.brains import BrainShare
from headrace.stages.policy.protocol import ActingPolicy


@dataclass
class MappedPlayer:
    """A policy in a mapping, and its version."""

    policy: ActingPolicy
    version: int = -1
    snapshot: int = -1
    """Number of the policy's snapshot; -1 for a policy straight from the trainer."""
    plain: bool = False
    """True if the policy's behaviour has no self-play."""
    brain: str = ""
    """Name of a brain that does not learn; empty for a trainer's policy."""


@dataclass
class PolicyMapping:
    """A game's policies, and the stamp for its trajectories."""

    generation: int
    opponent: int
    learning_team: int | None
    """The team that learns at the game's start, or, if several teams do, the team whose result counts; None without
    self-play."""
    players: dict[str, MappedPlayer] = field(default_factory=dict)
    learners: set[str] = field(default_factory=set)
    """Behaviour ids whose steps the trainer learns from."""
    draws: dict[int, float] = field(default_factory=dict)
    """Per team with brains: the number drawn for the brains; see `BrainDraws`."""
    codes: tuple[int, ...] = ()
    """In a league: the code of each team's player; see `headrace.pipeline.parts.league`."""


def no_behavior(behavior_name: str) -> bool:
    """Return False for every behaviour name."""
    return False


class PolicyMappings:
    """The mappings of an actor's running games.

    Args:
        make_policy: builds an acting policy for a behaviour spec; the policy gets its weights from its first update.
        has_self_play: returns True for a behaviour name if assignments determine its policies.
        make_brains: makes a behaviour spec's brains, with their shares of the games. With self-play, only games in
            which the behaviour's team is an opponent count; without it, all games do.
    """

    def __init__(
        self,
        make_policy: Callable[[BehaviorSpec], ActingPolicy],
        has_self_play: Callable[[str], bool] = no_behavior,
        make_brains: Callable[[BehaviorSpec], Sequence[BrainShare]] = lambda spec: (),
    ) -> None:
        self._make_policy = make_policy
        self._has_self_play = has_self_play
        self._make_brains = make_brains
        self._specs: dict[str, BehaviorSpec] = {}
        self._names: dict[str, str] = {}
        self._plain: dict[str, MappedPlayer] = {}
        self._fixed: dict[str, MappedPlayer] = {}
        """Per behaviour id that never learns: its first brain."""
        self._brains: dict[str, list[MappedPlayer]] = {}
        self._draws = BrainDraws()
        self._variants: dict[tuple[int, ...], PolicyMapping] = {}
        self._updates: dict[str, PolicyUpdate] = {}
        self._pending: Assignment | None = None
        self.current = PolicyMapping(0, -1, None)
        self.games: list[PolicyMapping] = []
        """The mapping of each instance's running game."""
        self.turns = 0
        """How many times the learning team has changed so far."""
        self._mixed = False
        self._distinct: list[PolicyMapping] = []
        self._slots: NDArray[np.intp] | None = None

    @property
    def self_play(self) -> bool:
        """True if any behaviour seen so far has self-play."""
        return len(self._plain) + len(self._fixed) < len(self._specs)

    @property
    def mixes_brains(self) -> bool:
        """True if a draw for each game determines which brains decide in it."""
        return bool(self._draws)

    @property
    def names_players(self) -> bool:
        """True if results include the players and each team's return."""
        return False

    @property
    def rates_brains(self) -> bool:
        """True if only brains that do not learn play, so the results measure their strength."""
        return bool(self._fixed) and len(self._fixed) == len(self._specs)

    def begin_games(self, num_envs: int, random: np.random.Generator | None = None) -> None:
        """Begin a game in every instance.

        Args:
            num_envs: number of instances.
            random: picks the brains that take part in these games and in later games.
        """
        if random is not None:
            self._draws.random = random
        self.games = self._draw_games(num_envs)
        self._mixed, self._slots = any(game is not self.current for game in self.games), None

    def add_behavior(self, spec: BehaviorSpec) -> None:
        """Add a behaviour id.

        Raises:
            SpecError: if the id's team is not valid.
        """
        behavior_team(spec.behavior_id)
        behavior_id = spec.behavior_id
        self._specs[behavior_id] = spec
        self._names[behavior_id] = spec.name
        fixed = self._add_brains(spec)
        if self._has_self_play(spec.name):
            return
        player = fixed or MappedPlayer(self._make_policy(spec), plain=True)
        (self._plain if fixed is None else self._fixed)[behavior_id] = player
        for mapping in (self.current, *self.games):
            mapping.players[behavior_id] = player
            if fixed is None:
                mapping.learners.add(behavior_id)

    def _add_brains(self, spec: BehaviorSpec) -> MappedPlayer | None:
        """Add a behaviour id's brains; return the first brain if no other policy ever decides, otherwise None."""
        plain, shares = not self._has_self_play(spec.name), self._make_brains(spec)
        if not shares:
            return None
        brains = [MappedPlayer(share.brain, 0, plain=plain, brain=share.name) for share in shares]
        self._variants.clear()
        self._brains[spec.behavior_id] = brains
        weights = [share.weight for share in shares]
        never_learns = plain and fills(weights)
        self._draws.add(spec, weights, differ=len(shares) > 1 or not never_learns)
        return brains[0] if never_learns else None

    def update(self, update: PolicyUpdate) -> None:
        """Use a policy update that was published for a behaviour id."""
        if update.behavior_id not in self._plain:  # games may need it under a later assignment
            self._updates[update.behavior_id] = update.copy()
        player = self.current.players.get(update.behavior_id)
        if player is not None and update.snapshot < 0 and update.behavior_id in self.current.learners:
            player.policy.load(update)
            player.version = update.version
        if self._pending is not None:
            self._adopt(self._pending)

    def assign(self, assignment: Assignment | Matches) -> None:
        """Use an assignment for new games, once the policies that it names have arrived."""
        assert isinstance(assignment, Assignment), "matches are for learners of a league"
        self._pending = assignment
        self._adopt(assignment)

    def ready(self, behavior_ids: Iterable[str]) -> bool:
        """Return True if each of these behaviour ids has a policy."""
        players = self.current.players
        return all(name in players and players[name].version >= 0 for name in behavior_ids)

    def has_self_play(self, behavior_id: str) -> bool:
        """Return True if a behaviour id has self-play."""
        return behavior_id in self._specs and behavior_id not in self._plain and behavior_id not in self._fixed

    def counts_games(self, behavior_id: str) -> bool:
        """Return True if a behaviour id's episodes determine when a game is over.

        If no behaviour has self-play, all do.
        """
        return self.has_self_play(behavior_id) or not self.self_play

    def emits(self, behavior_id: str) -> bool:
        """Return True if a behaviour id's steps leave the actor, False if the actor only decides for it."""
        return True

    def emitted(self, specs: Mapping[str, BehaviorSpec]) -> Mapping[str, BehaviorSpec]:
        """Return the `specs` of the behaviour ids whose steps leave the actor."""
        return specs

    def newest_versions(self, names: Iterable[str]) -> dict[str, int]:
        """Return the newest version of the learning policies of each behaviour in `names`; -1 if none has arrived yet.

        Left out are behaviours whose steps in new games the trainer does not learn from.
        """
        players, newest = self.current.players, dict[str, int]()
        for name in names:
            for behavior_id in self.current.learners:
                if self._names[behavior_id] == name:
                    newest[name] = max(players[behavior_id].version, newest.get(name, -1))
        return newest

    # Players change only between games: a mixed game's result would belong to no policy (docs/decisions/027).
    def restart_games(self, env_ids: NDArray[np.int32]) -> None:
        """Begin the next game, under the current mapping, in each of these instances, whose games have ended."""
        for env_id, mapping in zip(env_ids, self._draw_games(len(env_ids)), strict=True):
            self.games[env_id] = mapping
        if self._slots is not None and not self._draws:
            self._slots[env_ids] = 0  # the current mapping's number
        elif len(env_ids):
            self._slots = None
        if self._mixed or self._draws:
            self._mixed = any(mapping is not self.current for mapping in self.games)

    def rows_by_mapping(self, env_ids: NDArray[np.int32]) -> list[tuple[PolicyMapping, NDArray[np.intp] | None]]:
        """Split a tick's rows by mapping, into pairs (mapping, row indices). None as indices stands for all rows."""
        if not self._mixed:
            return [(self.current, None)]
        if self._slots is None:
            self._number_mappings()
            assert self._slots is not None
        slots = self._slots[env_ids]
        parts = [(mapping, np.flatnonzero(slots == slot)) for slot, mapping in enumerate(self._distinct)]
        occupied = [(mapping, rows) for mapping, rows in parts if len(rows)]
        return [(occupied[0][0], None)] if len(occupied) == 1 else [*occupied]

    def _draw_games(self, count: int) -> list[PolicyMapping]:
        """Return mappings for `count` games that are about to begin."""
        if not self._draws or (self.self_play and self.current.learning_team is None):  # no game can begin yet
            return [self.current] * count
        return [self._drawn(draws) for draws in self._draws.draw(count)]

    def _drawn(self, draws: dict[int, float]) -> PolicyMapping:
        """Return the current mapping, or a variant of it in which some brains decide."""
        current = self.current
        drawn = {i: self._draws.chosen(i, draws) for i in self._brains if not self._learns_by_turns(i)}
        chosen = {i: index for i, index in drawn.items() if index > (-1 if i not in self._fixed else 0)}
        if not chosen:
            return current
        key = tuple(chosen.get(behavior_id, -1) for behavior_id in self._brains)
        if key not in self._variants:
            players = {behavior_id: self._brains[behavior_id][index] for behavior_id, index in chosen.items()}
            # For an opponent in self-play the number identifies the brain, as a snapshot's number does.
            opponents = [-2 - index for behavior_id, index in chosen.items() if self.has_self_play(behavior_id)]
            self._variants[key] = PolicyMapping(
                current.generation,
                opponents[0] if opponents else current.opponent,
                current.learning_team,
                {**current.players, **players},
                current.learners - players.keys(),
                draws,
            )
        return self._variants[key]

    def _learns_by_turns(self, behavior_id: str) -> bool:
        """Return True if a behaviour id's team is the one that currently learns, against other teams' brains."""
        return self.has_self_play(behavior_id) and behavior_team(behavior_id) == self.current.learning_team

    def _number_mappings(self) -> None:
        """Number the current mapping 0 and the running games' mappings from 1; store each instance's number."""
        distinct = {id(mapping): mapping for mapping in (self.current, *self.games)}
        numbers = {key: number for number, key in enumerate(distinct)}
        self._distinct = list(distinct.values())
        self._slots = np.array([numbers[id(mapping)] for mapping in self.games], np.intp)

    def _adopt(self, pending: Assignment) -> None:
        if not all(self._has(pending, behavior_id) for behavior_id in self._specs):
            return
        self._pending = None
        same_team = self.current.learning_team == pending.learning_team
        if not same_team:
            self.turns += 1
            for game in (self.current, *self.games):
                game.learners = game.learners & self._plain.keys()
        mapping = PolicyMapping(
            pending.generation,
            pending.opponent,
            pending.learning_team,
            {**self._plain, **self._fixed},
            set(self._plain),
        )
        for behavior_id in filter(self.has_self_play, self._specs):
            learns = pending.learns(behavior_id)
            if learns:
                mapping.learners.add(behavior_id)
            mapping.players[behavior_id] = self._player(behavior_id, learns, same_team)
        # A game without a policy for some behaviour id has not begun: it is played under this mapping.
        self.current = mapping
        self._variants.clear()
        begun = [game.players.keys() >= mapping.players.keys() for game in self.games]
        drawn = iter(self._draw_games(begun.count(False)))
        self.games = [game if has_begun else next(drawn) for game, has_begun in zip(self.games, begun, strict=True)]
        self._mixed, self._slots = any(game is not mapping for game in self.games), None

    def _player(self, behavior_id: str, learns: bool, same_team: bool) -> MappedPlayer:
        """Return a behaviour id's policy for a new mapping, if possible one that is already in use.

        Reuse lets running games of the same learner continue with each new policy, and lets an opponent in several
        mappings decide for all their games in one call.
        """
        update, player = self._updates[behavior_id], self.current.players.get(behavior_id)
        if learns:
            if player is not None and same_team:
                return player
        else:
            wanted = update.snapshot, update.version
            for mapping in {id(mapping): mapping for mapping in (self.current, *self.games)}.values():
                player = mapping.players.get(behavior_id)
                if player is not None and not player.brain and (player.snapshot, player.version) == wanted:
                    return player
        player = MappedPlayer(self._make_policy(self._specs[behavior_id]), update.version, update.snapshot)
        player.policy.load(update)
        return player

    def _has(self, pending: Assignment, behavior_id: str) -> bool:
        if behavior_id in self._fixed:
            return True
        if behavior_id in self._plain:
            return self._plain[behavior_id].version >= 0
        update, named = self._updates.get(behavior_id), pending.policies.get(behavior_id)
        if update is None or named is None:
            return False
        snapshot, version = named
        if pending.learns(behavior_id):
            return update.snapshot < 0 and update.version >= version
        return (update.snapshot, update.version) == (snapshot, version)


# Draws that determine in which games a brain decides for a behaviour id, and which brain.


class BrainDraws:
    """Draws a number from [0, 1) for each team of each game that begins.

    The first brain decides if the number is below its share, the second if the number is below the sum of both shares,
    and so on. So if a team's behaviours have equal shares, they get brains of the same index: with shares of one fifth,
    a script controls an entire team in a fifth of its games, rather than each member in a different fifth.

    Attributes:
        random: the source of randomness.
    """

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self._shares: dict[str, list[float]] = {}
        self._teams: list[int] = []

    def __bool__(self) -> bool:
        """Return True if any team needs a draw."""
        return bool(self._teams)

    def add(self, spec: BehaviorSpec, shares: Sequence[float], *, differ: bool) -> None:
        """Add the shares of a behaviour id's brains; `differ` is False if every draw has the same effect."""
        self._shares[spec.behavior_id] = [*shares]
        if differ:
            self._teams = sorted({*self._teams, spec.team})

    def draw(self, count: int) -> Iterator[dict[int, float]]:
        """Yield a number for each team, for each of `count` games."""
        # In the precision of the results' column, so a number read from the column has the same meaning.
        numbers = self.random.random((count, len(self._teams)), np.float32)
        for row in numbers.tolist():
            yield dict(zip(self._teams, row, strict=True))

    def chosen(self, behavior_id: str, draws: dict[int, float]) -> int:
        """Return the index of the brain that decides for a behaviour id in a game; -1 if no brain does."""
        return drawn(self._shares[behavior_id], draws.get(behavior_team(behavior_id), 0.0))

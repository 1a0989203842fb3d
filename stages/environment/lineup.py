"""Who plays with which policy in which game: an actor's view of the assignments that the ghost stages make.

A behaviour without self-play plays with its newest policy, whoever else is there, and always learns. Of those with
self-play, each game keeps the lineup that was current when it started, until it ends: its opponents stay frozen, and
its trajectories are stamped with it. When another team learns, nobody learns any more from games of the turn before,
which the actor then ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from queues.messages import Assignment, PolicyUpdate
from queues.specs import BehaviorSpec, behavior_team
from stages.policy.protocol import ActingPolicy


@dataclass
class Player:
    """A policy that acts, and which version it is."""

    policy: ActingPolicy
    version: int = -1
    snapshot: int = -1
    """Which snapshot it is; -1 for a policy straight from the trainer."""
    plain: bool = False
    """Whether its behaviour has no self-play."""


@dataclass
class Lineup:
    """The players of a game, and the stamp of its trajectories."""

    generation: int
    opponent: int
    learning_team: int | None
    """The team that learned when the game began; None without self-play."""
    players: dict[str, Player] = field(default_factory=dict)
    learners: set[str] = field(default_factory=set)
    """Behaviour ids whose steps are learned from."""

    def learns(self, behavior_id: str) -> bool:
        """Whether what agents of this behaviour id do is learned from."""
        return behavior_id in self.learners


def nobody(behavior_name: str) -> bool:
    """No behaviour has self-play."""
    return False


class Lineups:
    """The lineups of an actor's running games.

    Args:
        make_policy: builds an acting policy for a behaviour spec; its weights come with the first update.
        has_self_play: tells of a behaviour name whether assignments will say how it plays.
    """

    def __init__(
        self,
        make_policy: Callable[[BehaviorSpec], ActingPolicy],
        has_self_play: Callable[[str], bool] = nobody,
    ) -> None:
        self._make_policy = make_policy
        self._has_self_play = has_self_play
        self._specs: dict[str, BehaviorSpec] = {}
        self._plain: dict[str, Player] = {}
        self._updates: dict[str, PolicyUpdate] = {}
        self._wanted: Assignment | None = None
        self.current = Lineup(0, -1, None)
        self.games: list[Lineup] = []
        """By environment instance: the lineup of its running game."""
        self.turns = 0
        """How often the learning team has changed."""
        self._mixed = False
        self._distinct: list[Lineup] = []
        self._slots: NDArray[np.intp] | None = None

    @property
    def self_play(self) -> bool:
        """Whether any behaviour seen so far has self-play."""
        return len(self._plain) < len(self._specs)

    def open_games(self, num_envs: int) -> None:
        """All instances start a game now."""
        self.games = [self.current] * num_envs
        self._mixed, self._slots = False, None

    def add_behavior(self, spec: BehaviorSpec) -> None:
        """A behaviour id that was not known before.

        Raises:
            SpecError: if it names a team that can't be.
        """
        behavior_team(spec.behavior_id)
        self._specs[spec.behavior_id] = spec
        if not self._has_self_play(spec.name):
            player = self._plain[spec.behavior_id] = Player(self._make_policy(spec), plain=True)
            for lineup in (self.current, *self.games):
                lineup.players[spec.behavior_id] = player
                lineup.learners.add(spec.behavior_id)

    def update(self, update: PolicyUpdate) -> None:
        """Take up a policy that was published for a behaviour id."""
        self._updates[update.behavior_id] = update.copy()
        player = self.current.players.get(update.behavior_id)
        if player is not None and update.snapshot < 0 and self.current.learns(update.behavior_id):
            player.policy.load(update)
            player.version = update.version
        self._adopt()

    def assign(self, assignment: Assignment) -> None:
        """Take up an assignment, as soon as the policies that it names are here; new games are played under it."""
        self._wanted = assignment
        self._adopt()

    def ready(self, behavior_ids: Iterable[str]) -> bool:
        """Whether there is a policy for each of these behaviour ids."""
        players = self.current.players
        return all(name in players and players[name].version >= 0 for name in behavior_ids)

    def plays(self, behavior_id: str) -> bool:
        """Whether a behaviour id has self-play."""
        return behavior_id in self._specs and behavior_id not in self._plain

    def learns(self, behavior_name: str) -> bool:
        """Whether what agents of this behaviour do now may be learned from."""
        return any(self._specs[behavior_id].name == behavior_name for behavior_id in self.current.learners)

    def newest_version(self, behavior_name: str) -> int:
        """The version that a behaviour's learners act by, -1 where none of them learns or has a policy yet."""
        current = self.current
        return max(
            (current.players[i].version for i in current.learners if self._specs[i].name == behavior_name),
            default=-1,
        )

    def restart(self, env_ids: NDArray[np.int32]) -> None:
        """These instances' games have ended; the next ones are played under the current lineup."""
        for env_id in env_ids:
            self.games[env_id] = self.current
        if len(env_ids):
            self._slots = None
        if self._mixed:
            self._mixed = any(lineup is not self.current for lineup in self.games)

    def split(self, env_ids: NDArray[np.int32]) -> list[tuple[Lineup, NDArray[np.intp] | None]]:
        """The rows of a tick by lineup: (lineup, row indices), or one pair with None where all rows share it."""
        if not self._mixed:
            return [(self.current, None)]
        if self._slots is None:
            self._number_lineups()
            assert self._slots is not None
        slots = self._slots[env_ids]
        parts = [(lineup, np.flatnonzero(slots == slot)) for slot, lineup in enumerate(self._distinct)]
        found = [(lineup, rows) for lineup, rows in parts if len(rows)]
        return [(found[0][0], None)] if len(found) == 1 else [*found]

    def _number_lineups(self) -> None:
        """Note which of the running games' lineups each instance has: asked in each tick, changed in few."""
        distinct = {id(lineup): lineup for lineup in self.games}
        numbers = {key: number for number, key in enumerate(distinct)}
        self._distinct = list(distinct.values())
        self._slots = np.array([numbers[id(lineup)] for lineup in self.games], np.intp)

    def _adopt(self) -> None:
        wanted = self._wanted
        if wanted is None or not all(self._has(wanted, behavior_id) for behavior_id in self._specs):
            return
        self._wanted = None
        goes_on = self.current.learning_team == wanted.learning_team
        if not goes_on:
            self.turns += 1
            for game in (self.current, *self.games):
                game.learners = set(self._plain)
        lineup = Lineup(wanted.generation, wanted.opponent, wanted.learning_team, dict(self._plain), set(self._plain))
        for behavior_id in self._specs.keys() - self._plain.keys():
            learns = behavior_team(behavior_id) == wanted.learning_team
            if learns:
                lineup.learners.add(behavior_id)
            lineup.players[behavior_id] = self._player(behavior_id, learns, goes_on)
        # A game in which somebody has nobody to play for them has not begun: it is played under this lineup.
        self.games = [game if game.players.keys() >= lineup.players.keys() else lineup for game in self.games]
        self.current = lineup
        self._mixed, self._slots = any(game is not lineup for game in self.games), None

    def _player(self, behavior_id: str, learns: bool, goes_on: bool) -> Player:
        """Who plays for a behaviour id under a new lineup; as far as can be, somebody who plays already.

        Running games of the same learner go on learning by each new policy, and an opponent that is met in several
        lineups decides for all their games together.
        """
        update, player = self._updates[behavior_id], self.current.players.get(behavior_id)
        if learns:
            if player is not None and goes_on:
                return player
        else:
            wanted = update.snapshot, update.version
            for lineup in {id(lineup): lineup for lineup in (self.current, *self.games)}.values():
                player = lineup.players.get(behavior_id)
                if player is not None and (player.snapshot, player.version) == wanted:
                    return player
        player = Player(self._make_policy(self._specs[behavior_id]), update.version, update.snapshot)
        player.policy.load(update)
        return player

    def _has(self, wanted: Assignment, behavior_id: str) -> bool:
        update = self._updates.get(behavior_id)
        if update is None:
            return False
        if behavior_id in self._plain:
            return True
        named = wanted.policies.get(behavior_id)
        if named is None:
            return False
        snapshot, version = named
        if behavior_team(behavior_id) == wanted.learning_team:
            return update.snapshot < 0 and update.version >= version
        return (update.snapshot, update.version) == (snapshot, version)

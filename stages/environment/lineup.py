"""Who plays with which policy in which game: an actor's view of the assignments that the ghost stage makes.

Without self-play there is one lineup for ever, in which everybody learns. With self-play, each game keeps the lineup
that was current when it started, until it ends: its opponents stay frozen, and its trajectories are stamped with it.
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


@dataclass
class Lineup:
    """The players of a game, and the stamp of its trajectories."""

    generation: int
    opponent: int
    learning_team: int | None
    """None without self-play: all learn."""
    players: dict[str, Player] = field(default_factory=dict)

    def learns(self, behavior_id: str) -> bool:
        """Whether agents of this behaviour id play for the learning team."""
        return self.learning_team is None or behavior_team(behavior_id) == self.learning_team


class Lineups:
    """The lineups of an actor's running games.

    Args:
        make_policy: builds an acting policy for a behaviour spec; its weights come with the first update.
        self_play: whether assignments will come; without, everybody learns.
    """

    def __init__(self, make_policy: Callable[[BehaviorSpec], ActingPolicy], self_play: bool = False) -> None:
        self._make_policy = make_policy
        self.self_play = self_play
        self._specs: dict[str, BehaviorSpec] = {}
        self._updates: dict[str, PolicyUpdate] = {}
        self._wanted: Assignment | None = None
        self.current = Lineup(0, -1, None)
        self.games: list[Lineup] = []
        """By environment instance: the lineup of its running game."""
        self._mixed = False

    def open_games(self, num_envs: int) -> None:
        """All instances start a game now."""
        self.games = [self.current] * num_envs
        self._mixed = False

    def add_behavior(self, spec: BehaviorSpec) -> None:
        """A behaviour id that was not known before."""
        self._specs[spec.behavior_id] = spec
        if not self.self_play:
            self.current.players[spec.behavior_id] = Player(self._make_policy(spec))

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

    def newest_version(self, behavior_name: str) -> int:
        """The newest version of a trainer's policy that has arrived, -1 before the first."""
        return max(
            (u.version for i, u in self._updates.items() if self._specs[i].name == behavior_name and u.snapshot < 0),
            default=-1,
        )

    def restart(self, env_ids: NDArray[np.int32]) -> None:
        """These instances' games have ended; the next ones are played under the current lineup."""
        for env_id in env_ids:
            self.games[env_id] = self.current
        if self._mixed:
            self._mixed = any(lineup is not self.current for lineup in self.games)

    def split(self, env_ids: NDArray[np.int32]) -> list[tuple[Lineup, NDArray[np.intp] | None]]:
        """The rows of a tick by lineup: (lineup, row indices), or one pair with None where all rows share it."""
        if not self._mixed:
            return [(self.current, None)]
        rows_of: dict[int, list[int]] = {}
        for row, env_id in enumerate(env_ids):
            rows_of.setdefault(id(self.games[env_id]), []).append(row)
        if len(rows_of) == 1:
            return [(self.games[env_ids[0]], None)]
        return [(self.games[env_ids[rows[0]]], np.array(rows, np.intp)) for rows in rows_of.values()]

    def _adopt(self) -> None:
        wanted = self._wanted
        if wanted is None or not all(self._has(wanted, behavior_id) for behavior_id in self._specs):
            return
        self._wanted = None
        lineup = Lineup(wanted.generation, wanted.opponent, wanted.learning_team)
        for behavior_id, spec in self._specs.items():
            previous = self.current.players.get(behavior_id)
            keeps_learning = self.current.learning_team == wanted.learning_team and lineup.learns(behavior_id)
            if previous is not None and keeps_learning:
                lineup.players[behavior_id] = previous  # running games of the same learner go on learning
                continue
            update = self._updates[behavior_id]
            player = Player(self._make_policy(spec), update.version)
            player.policy.load(update)
            lineup.players[behavior_id] = player
        # A game in which somebody has nobody to play for them has not begun: it is played under this lineup.
        self.games = [game if game.players.keys() >= lineup.players.keys() else lineup for game in self.games]
        self.current = lineup
        self._mixed = any(game is not lineup for game in self.games)

    def _has(self, wanted: Assignment, behavior_id: str) -> bool:
        update = self._updates.get(behavior_id)
        if update is None:
            return False
        named = wanted.policies.get(behavior_id)
        if named is None:
            return True
        snapshot, version = named
        if behavior_team(behavior_id) == wanted.learning_team:
            return update.snapshot < 0 and update.version >= version
        return (update.snapshot, update.version) == (snapshot, version)

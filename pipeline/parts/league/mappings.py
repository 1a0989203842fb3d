"""Chooses the players of each game in an actor that plays for one learner of a league, from main's match table."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Assignment, Matches, PolicyUpdate
from headrace.queues.specs import BehaviorSpec, behavior_name
from headrace.stages.environments.policy_mapping import MappedPlayer, PolicyMapping, PolicyMappings
from headrace.stages.errors import StageError
from headrace.stages.policy.protocol import ActingPolicy

OWN = -1
"""Player code for the learner's own newest policy; -2 - k is the code for the newest policy of the league's k-th
learner.
"""


class LeagueMappings(PolicyMappings):
    """Assigns players to the teams in the running games.

    In each game, one team (the seat) belongs to the learner. Pool members or newest policies play the other teams. If
    several behaviours have a league, each belongs to one team. The other teams' steps stay in the actor, because their
    learners have separate actors.

    Args:
        make_policy: makes an acting policy for a behaviour spec.
        learner: the behaviour name of the learner.
        learners: maps the behaviour names of the game's learners, in order, to their behaviours in the environment.
        make_member: makes a pool member's policy or brain from a spec, the member's number, and its row in the table.
        memory: number of members to keep in memory, in addition to those that are playing.
    """

    def __init__(
        self,
        make_policy: Callable[[BehaviorSpec], ActingPolicy],
        learner: str,
        learners: Mapping[str, str],
        make_member: Callable[[BehaviorSpec, int, Mapping[str, Any]], MappedPlayer],
        memory: int,
    ) -> None:
        super().__init__(make_policy, {learner, *learners.values()}.__contains__)
        self._learner = learner
        self._own = learners[learner]
        self._sides = learners
        self._early: dict[str, PolicyUpdate] = {}
        """Policies for behaviours that have not appeared in the environments yet."""
        self._codes = {name: -2 - k for k, name in enumerate(learners)} | {learner: OWN}
        self._make_member = make_member
        self._memory = memory
        self._matches: Matches | None = None
        self._offered: Matches | None = None
        self._rows: dict[str, tuple[NDArray[np.intp], NDArray[np.float64]]] = {}
        """Indices of match rows, and the rows' cumulative probabilities, keyed by the opponents' behaviour in the
        environment.
        """
        self._teams: dict[int, list[str]] = {}
        """Per team: the behaviour ids for which a league has players."""
        self._newest: dict[int, MappedPlayer] = {}
        """The newest policies, including the learner's own, keyed by player code."""
        self._members: OrderedDict[int, MappedPlayer] = OrderedDict()
        """Members in memory, from the least to the most recently drawn."""
        self._drawn_games: dict[tuple[int, ...], PolicyMapping] = {}
        self._numbers: dict[int, int] = {}
        """Slots of the mappings, keyed by the mappings' `id()`."""
        self._begun = False

    @property
    def names_players(self) -> bool:
        """Always True, because results contain the players and each team's return."""
        return True

    def add_behavior(self, spec: BehaviorSpec) -> None:
        """Add a behaviour id."""
        super().add_behavior(spec)
        self._drawn_games.clear()
        if not self._has_self_play(spec.name):
            return
        teams = {**self._teams, spec.team: [*self._teams.get(spec.team, []), spec.behavior_id]}
        self._check_teams(teams)
        self._teams = dict(sorted(teams.items()))
        if spec.name == self._learner:
            self._newest.setdefault(OWN, MappedPlayer(self._make_policy(spec)))
        self._renew()
        self._begun = False  # the running games have no policy for this behaviour id
        early, self._early = self._early, {}
        for update in early.values():
            self.update(update)

    def _check_teams(self, teams: Mapping[int, Iterable[str]]) -> None:
        if len({*self._sides.values()}) == 1:
            return
        names = [sorted({*map(behavior_name, ids)}) for ids in teams.values()]
        flat = [name for each in names for name in each]
        if max(map(len, names)) > 1 or len({*flat}) < len(flat):
            named = {team: [self._side_of_name(name) for name in each] for team, each in zip(teams, names, strict=True)}
            found = ", ".join(f"{' and '.join(each)} in team {team}" for team, each in sorted(named.items()))
            raise StageError(
                "a league of several behaviours requires a game in which each team has a different behaviour; found "
                f"{found}; give the agents of all teams the same behaviour, or each team a different one"
            )

    def emits(self, behavior_id: str) -> bool:
        """Return True for the learner's steps, and for steps of behaviours without a league."""
        name = behavior_name(behavior_id)
        return name == self._learner or not self._has_self_play(name)

    def emitted(self, specs: Mapping[str, BehaviorSpec]) -> Mapping[str, BehaviorSpec]:
        """Return the specs of those behaviour ids whose steps are emitted."""
        return {behavior_id: spec for behavior_id, spec in specs.items() if self.emits(behavior_id)}

    def update(self, update: PolicyUpdate) -> None:
        """Use a policy that was published for a behaviour id.

        Another learner's policy is published under only its behaviour name.
        """
        code = self._codes.get(behavior_name(update.behavior_id))
        if code is None:
            super().update(update)
            return
        spec = self._spec_of(self._side_of(code))
        if spec is None:
            self._early[update.behavior_id] = update.copy()
            return
        if code not in self._newest:
            self._newest[code] = MappedPlayer(self._make_policy(replace(spec, behavior_id=update.behavior_id)))
        player = self._newest[code]
        if player.version != update.version:
            player.policy.load(update)
            player.version = update.version
        self._adopt()

    def assign(self, assignment: Assignment | Matches) -> None:
        """Draw games from these matches once the newest policies that they name have arrived."""
        assert isinstance(assignment, Matches), "assignments are for self-play"
        self._offered = assignment
        self._adopt()

    def _adopt(self) -> None:
        matches, found = self._offered, self._newest
        named = () if matches is None else (OWN, *matches.seats, *matches.opponents)
        if matches is None or not all(code >= 0 or (code in found and found[code].version >= 0) for code in named):
            self._start()
            return
        self._matches, self._offered = matches, None
        sides, weights = [self._side_of(code, matches) for code in matches.opponents], np.array(matches.weights)
        for side in dict.fromkeys(sides):
            rows = np.flatnonzero([each == side for each in sides])
            limits = np.cumsum(weights[rows])
            limits[-1] = np.inf
            self._rows[side] = rows, limits
        self._drawn_games.clear()
        self._renew()
        self._start()

    def ready(self, behavior_ids: Iterable[str]) -> bool:
        """Return True if there are matches, and all their players have arrived."""
        return self._matches is not None and super().ready(behavior_ids)

    def begin_games(self, num_envs: int, random: np.random.Generator | None = None) -> None:
        """Begin a game in every instance."""
        if random is not None:
            self._draws.random = random
        self.games = [self.current] * num_envs
        self._slots = np.zeros(num_envs, np.intp)
        self._begun = False
        self._start()

    def restart_games(self, env_ids: NDArray[np.int32]) -> None:
        """Begin the next games of instances whose games have ended."""
        if not self._begun:
            return
        assert self._slots is not None, "games have begun"
        for env_id, mapping in zip(env_ids.tolist(), self._draw_games(len(env_ids)), strict=True):
            self.games[env_id] = mapping
            self._slots[env_id] = self._slot_of(mapping)
        if len(self._distinct) > 2 * len(self.games) + _SPARE:
            self._number_mappings()

    def rows_by_mapping(self, env_ids: NDArray[np.int32]) -> list[tuple[PolicyMapping, NDArray[np.intp] | None]]:
        """Return the mappings of a tick's rows, each with the indices of its rows; None stands for all rows."""
        if self._slots is None or not self._begun:
            return [(self.current, None)]
        slots = self._slots[env_ids]
        order = np.argsort(slots, kind="stable")
        ordered = slots[order]
        inner = (np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist()
        if not inner:
            return [(self._distinct[ordered[0]], None)]
        bounds = pairwise([0, *inner, len(order)])
        return [(self._distinct[ordered[first]], order[first:end]) for first, end in bounds]

    def _renew(self) -> None:
        """Make a representative mapping: the learner's newest policy, and a player for each other behaviour."""
        ids = [i for ids in self._teams.values() for i in ids if behavior_name(i) == self._learner]
        own = dict.fromkeys(ids, self._newest[OWN]) if ids else {}
        plain = {**self._plain, **self._fixed}
        number = self._matches.number if self._matches is not None else 0
        for team, others in self._teams.items():
            side = self._side_of_team(team)
            if side != self._own and self._matches is not None and side in self._rows:
                first = self._matches.opponents[self._rows[side][0][0]]
                plain |= dict.fromkeys(others, self._player_of(first))
        self.current = PolicyMapping(number, OWN, None, {**plain, **own}, {*self._plain, *ids})

    def _start(self) -> None:
        """Begin a game in every instance once all players of the matches have arrived."""
        if self._begun or not self.games or OWN not in self._newest or not self.ready(self.current.players):
            return
        if not self._rows.keys() <= {*map(self._side_of_team, self._teams)}:
            return
        self._begun = True
        self.games = self._draw_games(len(self.games))
        self._number_mappings()

    def _draw_games(self, count: int) -> list[PolicyMapping]:
        random, sides = self._draws.random, {team: self._side_of_team(team) for team in self._teams}
        own = [team for team, side in sides.items() if side == self._own]
        others = [side for side in sides.values() if side != self._own] or [self._own] * max(1, len(own) - 1)
        seats = random.integers(len(own), size=count)
        draws = random.random((count, len(others)))
        rows = [self._drawn_rows(side, draws[:, column]) for column, side in enumerate(others)]
        return [self._game(own[seat], *each) for seat, *each in zip(seats.tolist(), *rows, strict=True)]

    def _drawn_rows(self, side: str, draws: NDArray[np.float64]) -> list[int]:
        rows, limits = self._rows[side]
        drawn: list[int] = rows[np.searchsorted(limits, draws, side="right")].tolist()
        return drawn

    def _side_of_name(self, name: str) -> str:
        """Return a learner's behaviour in the environment; other names are returned unchanged."""
        return self._sides.get(name, name)

    def _side_of_team(self, team: int) -> str:
        return self._side_of_name(behavior_name(self._teams[team][0]))

    def _side_of(self, code: int, matches: Matches | None = None) -> str:
        """Return the behaviour in the environment that a player controls; for a member, look it up in `matches`."""
        if code < OWN:
            return [*self._sides.values()][-2 - code]
        if code == OWN or matches is None:
            return self._own
        return matches.members[code].get("behavior") or self._own

    def _spec_of(self, side: str) -> BehaviorSpec | None:
        """Return the spec of agents with this behaviour in the environment; None before there are any."""
        return next(
            (self._specs[ids[0]] for team, ids in self._teams.items() if self._side_of_team(team) == side), None
        )

    def _game(self, seat: int, *rows: int) -> PolicyMapping:
        """Return a game's mapping, given a match row for each team except the seat.

        The first row names the seat's player.
        """
        key = (seat, *rows)
        if key not in self._drawn_games:
            self._drawn_games[key] = self._mapped(seat, rows)
        return self._drawn_games[key]

    def _mapped(self, seat: int, rows: tuple[int, ...]) -> PolicyMapping:
        matches = self._matches
        assert matches is not None, "there is a player"
        others = iter(rows)
        codes = {
            team: matches.seats[rows[0]] if team == seat else matches.opponents[next(others)] for team in self._teams
        }
        players, learners = {**self._plain, **self._fixed}, {*self._plain}
        for team, ids in self._teams.items():
            players |= dict.fromkeys(ids, self._player_of(codes[team]))
            if codes[team] == OWN == codes[seat]:
                learners.update(ids)
        opponent = next((code for team, code in codes.items() if team != seat), OWN)
        by_team = tuple(codes.get(team, OWN) for team in range(1 + max(codes)))
        return PolicyMapping(matches.number, opponent, seat, players, learners, codes=by_team)

    def _player_of(self, code: int) -> MappedPlayer:
        if code < 0:
            return self._newest[code]
        if code not in self._members:
            assert self._matches is not None, "it was drawn from them"
            spec = self._spec_of(self._side_of(code, self._matches))
            assert spec is not None, "a team has drawn it"
            self._members[code] = self._make_member(spec, code, self._matches.members[code])
        self._members.move_to_end(code)
        while len(self._members) > self._memory:
            self._members.popitem(last=False)
        return self._members[code]

    def _slot_of(self, mapping: PolicyMapping) -> int:
        slot = self._numbers.setdefault(id(mapping), len(self._distinct))
        if slot == len(self._distinct):
            self._distinct.append(mapping)
        return slot

    def _number_mappings(self) -> None:
        """Number the running games' mappings, and record each instance's number."""
        self._distinct, self._numbers = [], {}
        self._slots = np.array([self._slot_of(mapping) for mapping in self.games], np.intp)


_SPARE = 64
"""Maximum number of finished games' mappings to keep before renumbering."""

"""The actor's side of a league: gives agents one learner's name, and draws the players of each game."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config.league_game import league_game
from headrace.pipeline.common.graph import league_seats
from headrace.pipeline.common.seeds import derive_seed
from headrace.pipeline.roles.actor import ActorPart
from headrace.pipeline.roles.runtime import Host
from headrace.pipeline.run_folder.names import behavior_folder
from headrace.queues.messages import ActionBatch, Assignment, Matches, PolicyUpdate
from headrace.queues.specs import BehaviorSpec, behavior_name
from headrace.stages.brains import StandIn, make_brain
from headrace.stages.brains.protocol import BrainRequest
from headrace.stages.environments.factory import EnvironmentRequest, make_group
from headrace.stages.environments.policy_mapping import MappedPlayer, PolicyMapping, PolicyMappings
from headrace.stages.environments.protocol import EnvironmentGroup, StepResult, WrappedGroup
from headrace.stages.errors import StageError
from headrace.stages.league.pool import FOLDER, Member, read_member
from headrace.stages.policy.design import design_of
from headrace.stages.policy.protocol import ActingPolicy


class LearnersGroup(WrappedGroup):
    """Gives one of the environments' behaviours a learner's name, in specs, steps and statistics.

    Args:
        group: the environments.
        behavior: the behaviour's name in the environments.
        learner: the learner's name.
    """

    def __init__(self, group: EnvironmentGroup, behavior: str, learner: str) -> None:
        super().__init__(group)
        self._behavior = behavior
        self._learner = learner
        self._names: dict[str, str] = {}
        for name in ("set_parameters", "limits_episodes"):  # if the environments take parameters
            if hasattr(group, name):
                setattr(self, name, getattr(group, name))
        self._specs: dict[str, BehaviorSpec] = {}
        self.behavior_specs: Mapping[str, BehaviorSpec] = self._specs
        self._adopt()

    def reset(self, seed: int | None = None) -> StepResult | Awaitable[StepResult]:
        """Reset the environments."""
        return self._named(self._group.reset(seed))

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult | Awaitable[StepResult]:
        """Step the environments."""
        return self._named(
            self._group.step({inner: actions[name] for inner, name in self._names.items() if name in actions})
        )

    def _named(self, result: StepResult | Awaitable[StepResult]) -> StepResult | Awaitable[StepResult]:
        if inspect.isawaitable(result):
            return self._later(result)
        assert isinstance(result, StepResult)
        if len(self._group.behavior_specs) > len(self._names):
            self._adopt()
        steps = {self._names[behavior_id]: each for behavior_id, each in result.steps.items()}
        own = result.behavior_statistics
        if self._behavior in own:
            own = {self._learner if name == self._behavior else name: each for name, each in own.items()}
        return replace(result, steps=steps, behavior_statistics=own)

    async def _later(self, result: Awaitable[StepResult]) -> Any:
        return self._named(await result)

    def _adopt(self) -> None:
        for behavior_id, spec in self._group.behavior_specs.items():
            if behavior_id not in self._names:
                name = behavior_name(behavior_id)
                own = self._learner + behavior_id.removeprefix(name) if name == self._behavior else behavior_id
                self._names[behavior_id] = own
                self._specs[own] = spec if own == behavior_id else replace(spec, behavior_id=own)


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


MEMBERS = "members"
"""Part of the path from which members' random seeds are derived."""
IN_MEMORY = 64
"""Number of members whose policies an actor keeps in memory, in addition to those that are playing."""


class LeagueActor(ActorPart):
    """Makes the environments and the mappings of an actor that plays for one learner."""

    def __init__(self, host: Host, request: EnvironmentRequest) -> None:
        super().__init__(host, request)
        self._learner = league_seats(host.config)[host.plan.replica]
        self._game = league_game(host.config)
        league = host.config.behavior_settings(self._learner).league
        assert league is not None, "the actor has a seat in it"
        self._of = league.of
        self._make_policy: Any = None
        self.make_group = self._group

    def _group(self) -> EnvironmentGroup:
        return LearnersGroup(make_group(self.request), self._of, self._learner)

    def make_mappings(self, make_policy: Any, *_: Any) -> LeagueMappings:
        """Make the policy mappings, which choose the players of each game."""
        self._make_policy = make_policy
        sides, home = self._game.sides, self._game.home
        learners = {name: sides.get(key, home) for key, name in self._game.learners.items()}
        return LeagueMappings(make_policy, self._learner, learners, self._member, IN_MEMORY)

    def _member(self, spec: BehaviorSpec, number: int, known: Mapping[str, Any]) -> MappedPlayer:
        """Create the policy or brain of a pool member."""
        member = Member(**known)
        if member.use:
            return self._brain(spec, member)
        named = self._game.learner_name(member.learner) + spec.behavior_id.removeprefix(spec.name)
        update = read_member(behavior_folder(self.host.stages.folder.path, self._game.home) / FOLDER, member)
        policy = self._make_policy(replace(spec, behavior_id=named))
        policy.load(update)
        return MappedPlayer(policy, member.version, number)

    def _brain(self, spec: BehaviorSpec, member: Member) -> MappedPlayer:
        config = self.host.config
        of, index = self._game.brains[member.name]
        settings = next(each for each in self._game.settings.members if each.name == member.name)
        key = ("behaviors", of, "league", "members", index)
        seed = derive_seed(self.host.plan.seed, MEMBERS, self.host.plan.replica)
        request = BrainRequest(
            settings.use,
            settings.with_,
            (*key, "use"),
            (*key, "with"),
            config.source_folder,
            config.builtin_game,
            seed,
            replace(spec, behavior_id=of + spec.behavior_id.removeprefix(spec.name)),
        )
        design = design_of(spec, config.behavior_settings(spec.name), config.source_folder)
        return MappedPlayer(StandIn(make_brain(request), design), 0, member.number, brain=settings.name)

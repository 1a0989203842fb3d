"""Leagues: main's side and the actors' side.

In main, `LeaguePart` has the league's controller, the stages on its learners' routes, and its messages to actors and
learners. It acts immediately on each policy and each result. In a deterministic run, it waits until all actors are
idle, and then handles one learner after another, so that timing has no effect. In an actor, `LeagueActor` gives agents
one learner's name, and draws the players of each game.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config.league_game import league_game
from headrace.pipeline.common.graph import LEAGUE, actor_learners
from headrace.pipeline.common.seeds import derive_seed
from headrace.pipeline.control import BeginAnew
from headrace.pipeline.main.behavior import SharedState
from headrace.pipeline.main.launcher import ActorSlot
from headrace.pipeline.main.run_part import Run, RunPart
from headrace.pipeline.roles.actor import ActorPart
from headrace.pipeline.roles.runtime import Host
from headrace.pipeline.run_folder.names import behavior_folder
from headrace.queues.disks import in_thread
from headrace.queues.messages import ActionBatch, Assignment, Columns, Matches, PolicyUpdate, TrajectoryBatch
from headrace.queues.specs import BehaviorSpec, behavior_name
from headrace.stages.actor.policy_mapping import MappedPlayer, PolicyMapping, PolicyMappings
from headrace.stages.brains import BrainRequest, StandIn, make_brain
from headrace.stages.environments.factory import EnvironmentRequest, make_group
from headrace.stages.environments.protocol import EnvironmentGroup, StepResult, WrappedGroup
from headrace.stages.errors import StageError
from headrace.stages.league.controller import Freeze, LeagueController, Turns
from headrace.stages.league.pool import FOLDER, Member, Pool, packed, read_member, unpacked
from headrace.stages.policy.design import design_of
from headrace.stages.policy.protocol import ActingPolicy
from headrace.stages.stage import Stage, StageContext
from headrace.stages.trainer.report import TrainerReport

log = logging.getLogger(__name__)


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
        self._specs: dict[str, BehaviorSpec] = {}
        self.behavior_specs: Mapping[str, BehaviorSpec] = self._specs
        self._add_new_ids()

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
            self._add_new_ids()
        steps = {self._names[behavior_id]: rows for behavior_id, rows in result.steps.items()}
        statistics = result.behavior_statistics
        if self._behavior in statistics:
            statistics = {
                self._learner if name == self._behavior else name: values for name, values in statistics.items()
            }
        return replace(result, steps=steps, behavior_statistics=statistics)

    async def _later(self, result: Awaitable[StepResult]) -> Any:
        return self._named(await result)

    def _add_new_ids(self) -> None:
        for behavior_id, spec in self._group.behavior_specs.items():
            if behavior_id not in self._names:
                name = behavior_name(behavior_id)
                is_league = name == self._behavior
                new_id = self._learner + behavior_id.removeprefix(name) if is_league else behavior_id
                self._names[behavior_id] = new_id
                self._specs[new_id] = replace(spec, behavior_id=new_id) if is_league else spec


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
        self._update_current()
        self._begun = False  # the running games have no policy for this behaviour id
        early, self._early = self._early, {}
        for update in early.values():
            self.update(update)

    def _check_teams(self, teams: Mapping[int, Iterable[str]]) -> None:
        if len({*self._sides.values()}) == 1:
            return
        names = [sorted({*map(behavior_name, ids)}) for ids in teams.values()]
        flat = [name for behaviors in names for name in behaviors]
        if max(map(len, names)) > 1 or len({*flat}) < len(flat):
            named = {
                team: [self._side_of_name(name) for name in behaviors]
                for team, behaviors in zip(teams, names, strict=True)
            }
            described = ", ".join(
                f"{' and '.join(behaviors)} in team {team}" for team, behaviors in sorted(named.items())
            )
            raise StageError(
                "a league of several behaviours requires a game in which each team has a different behaviour; found "
                f"{described}; give the agents of all teams the same behaviour, or each team a different one"
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
        self._use_offered_matches()

    def assign(self, assignment: Assignment | Matches) -> None:
        """Draw games from these matches once the newest policies that they name have arrived."""
        assert isinstance(assignment, Matches), "assignments are for self-play"
        self._offered = assignment
        self._use_offered_matches()

    def _use_offered_matches(self) -> None:
        matches, newest = self._offered, self._newest
        named = () if matches is None else (OWN, *matches.seats, *matches.opponents)
        if matches is None or not all(code >= 0 or (code in newest and newest[code].version >= 0) for code in named):
            self._start()
            return
        self._matches, self._offered = matches, None
        sides, weights = [self._side_of(code, matches) for code in matches.opponents], np.array(matches.weights)
        for side in dict.fromkeys(sides):
            rows = np.flatnonzero([opponent_side == side for opponent_side in sides])
            limits = np.cumsum(weights[rows])
            limits[-1] = np.inf
            self._rows[side] = rows, limits
        self._drawn_games.clear()
        self._update_current()
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

    def _update_current(self) -> None:
        """Make a representative mapping: the learner's newest policy, and a player for each other behaviour."""
        ids = [i for ids in self._teams.values() for i in ids if behavior_name(i) == self._learner]
        own_players = dict.fromkeys(ids, self._newest[OWN]) if ids else {}
        plain = {**self._plain, **self._fixed}
        number = self._matches.number if self._matches is not None else 0
        for team, others in self._teams.items():
            side = self._side_of_team(team)
            if side != self._own and self._matches is not None and side in self._rows:
                first = self._matches.opponents[self._rows[side][0][0]]
                plain |= dict.fromkeys(others, self._player_of(first))
        self.current = PolicyMapping(number, OWN, None, {**plain, **own_players}, {*self._plain, *ids})

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
        own_teams = [team for team, side in sides.items() if side == self._own]
        others = [side for side in sides.values() if side != self._own] or [self._own] * max(1, len(own_teams) - 1)
        seats = random.integers(len(own_teams), size=count)
        draws = random.random((count, len(others)))
        rows = [self._drawn_rows(side, draws[:, column]) for column, side in enumerate(others)]
        return [self._game(own_teams[seat], *drawn) for seat, *drawn in zip(seats.tolist(), *rows, strict=True)]

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
        self._learner = actor_learners(host.config)[host.plan.replica]
        self._game = league_game(host.config)
        league = host.config.behavior_settings(self._learner).league
        assert league is not None, "the actor plays in it"
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

    def _member(self, spec: BehaviorSpec, number: int, entry: Mapping[str, Any]) -> MappedPlayer:
        """Create the policy or brain of a pool member."""
        member = Member(**entry)
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
        settings = next(entry for entry in self._game.settings.members if entry.name == member.name)
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


_SHARED = {"resets", "turns", "freezes"}
"""Keys of the league's part of a checkpoint, in addition to the league's behaviour."""


class LeaguePart(RunPart):
    """A run's leagues; if several behaviours have a league, their leagues are combined into one."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        plan = run.plan
        self._actor_learners = actor_learners(plan.config)
        self._deterministic = plan.config.pipeline.deterministic
        self._game = league_game(plan.config)
        self._league: LeagueController | None = None
        self._learners: dict[str, str] = {}
        """Maps each learner's behaviour name to the learner's key in the settings."""
        self._newest: dict[str, PolicyUpdate] = {}
        self._sent: dict[tuple[str, int], int] = {}
        """Per learner and actor: the number of the last match table sent to the actor."""
        self._late: dict[str, int] = {}
        """Per learner: the version of a policy whose report has arrived but which has not itself arrived yet."""
        self._resets: dict[str, dict[str, Any]] = {}
        """Per learner: its last reset, as the fields of `BeginAnew`, because a restarted learner may not know it."""
        self._held_resets: list[str] | None = None
        """Learners whose reset waits until the checkpoint in progress ends; None if no checkpoint is in progress."""
        self._restored: dict[str, int] = {}
        """Per learner: the version of the policy that the checkpoint already includes."""
        self._freezes: deque[Freeze] = deque()
        """Policies to write into the pool; the first one is being written."""
        self._all_written = asyncio.Event()
        """Set while no policy waits to be written."""
        self._all_written.set()
        """The task that writes the policies in `_freezes`."""
        self._turns: Turns | None = None
        """The learners' turns; None if all learn simultaneously."""
        self._waiting: dict[str, tuple[list[Columns], list[PolicyUpdate]]] = {}
        """Per learner: the games and policies that a deterministic run handles once all actors are idle."""

    # The interface that self-play also has, for a learner's route. ----------------------------------------------------

    def add(self, behavior: str) -> None:
        """Add a learner whose route is being opened."""
        if self._league is None:
            self._open()
        self._learners[behavior] = self._game.keys[behavior]
        self.shared.add(behavior)

    def _open(self) -> None:
        plan, game = self.run.plan, self._game
        pool = Pool(behavior_folder(plan.folder.path, game.home) / FOLDER)
        random = np.random.default_rng(derive_seed(plan.seed, LEAGUE, game.home))
        self._league = controller = LeagueController(game.home, game.settings, pool, random, game.sides)
        saved = self.run.stages.saved_state(LEAGUE) or {}
        if saved and game.home not in saved:
            raise StageError(
                f"the league's part of the checkpoint belongs to {', '.join(saved.keys() - _SHARED)}, but should "
                f"belong to {game.home}, the first behaviour with a league: restore the order of the behaviours"
            )
        self._resets = dict(saved.get("resets", {}))
        if lengths := game.settings.turns():
            self._turns = Turns(lengths)
            self._turns.load_state_dict(saved.get("turns", self._turns.state_dict()))
            self._pause_others(self._turns)
        if game.home in saved:
            controller.load_state_dict(saved[game.home])
            versions = {name: progress["version"] for name, progress in saved[game.home]["progress"].items()}
            self._restored |= {game.learner_name(key): version for key, version in versions.items()}
        for learner, parent, policy in saved.get("freezes", ()):  # they were waiting to be written into the pool
            if learner in game.learners:
                controller.freezing.add(learner)
                self._freeze(Freeze(learner, unpacked(policy), parent))

    def _pause_others(self, turns: Turns) -> None:
        """Pause the actors of all learners whose turn it is not."""
        self.run.flow.ledger.pause_behaviors([self._game.learners[key] for key in turns.waiting])

    @property
    def league(self) -> LeagueController:
        """The league's controller, which exists once the first learner has been added."""
        assert self._league is not None, "a learner is opened"
        return self._league

    def elo(self, behavior: str) -> float | None:
        """Return None, because payoffs contain more information than a rating."""
        return None

    def trajectory_stage(self, behavior: str) -> Stage[Any, Any]:
        """Create the stage between actors and trainer."""
        return LeagueStage(self, behavior)

    def policy_stage(self, behavior: str) -> Stage[Any, Any]:
        """Create the stage between trainer and publisher."""
        return LeaguePolicies(self, behavior)

    @cached_property
    def shared(self) -> SharedState:
        """The state that all learners' routes share, which is one part of a checkpoint."""
        return SharedState(LEAGUE, self.run.stages, self._state)

    def checkpoint_begins(self) -> None:
        """Expect a barrier on each learner's route, and hold back resets until the checkpoint has ended."""
        self.shared.begin_checkpoint()
        self._held_resets = []

    def checkpoint_ended(self) -> None:
        """Send the resets that were decided during the checkpoint.

        If they were sent earlier, a trainer that saves its part of the checkpoint after main could include a reset,
        while main's part lacks the policy whose freeze caused that reset.
        """
        held, self._held_resets = self._held_resets or [], None
        for behavior in held:
            self.learner_ready(behavior)

    # Reports from the stages. -----------------------------------------------------------------------------------------

    def games_ended(self, behavior: str, games: Columns) -> list[tuple[str, str, float]]:
        """Count finished games; return a list of (behaviour, statistic, value)."""
        if self._deterministic:
            kept = {name: column.copy() for name, column in games.items()}
            self._waiting.setdefault(behavior, ([], []))[0].append(kept)
            return []
        return self._rate(behavior, games)

    def policy_made(self, behavior: str, update: PolicyUpdate) -> None:
        """Handle a learner's new policy."""
        if not self._deterministic:
            self._take(behavior, update)
            self._tell_all()
            return
        self._waiting.setdefault(behavior, ([], []))[1].append(update.copy())
        if self._late.get(behavior, update.version) <= update.version:
            self._late.pop(behavior, None)
            if not self._late:
                self.run.flow.resume(LEAGUE)
        if not self._newest and self._waiting.keys() >= set(self._actor_learners):
            self.at_rest()  # actors wait until they know the players

    def reported(self, report: TrainerReport) -> None:
        """Handle a trainer's report, which may end a turn; in a deterministic run, wait for the learner's policy."""
        key = self._learners.get(report.behavior)
        if self._turns is not None and key is not None and self._turns.reported(key, report.step, report.done):
            self._pause_others(self._turns)
        updates = self._waiting.get(report.behavior, ([], []))[1]
        newest = updates[-1] if updates else self._newest.get(report.behavior)
        if self._deterministic and newest is not None and newest.version < report.version:
            self._late[report.behavior] = report.version
            self.run.flow.ledger.pause(LEAGUE)

    def at_rest(self) -> None:
        """Handle the pending events, and send the new match tables to the actors."""
        if self._newest or self._waiting.keys() >= set(self._actor_learners):
            self._handle_waiting()
            self._tell_all()

    def _handle_waiting(self) -> None:
        """Handle the pending events of a deterministic run, one learner after the other."""
        waiting, self._waiting = self._waiting, {}
        for behavior in filter(waiting.__contains__, self._game.learners.values()):
            games, updates = waiting[behavior]
            for game_results in games:
                for category, name, value in self._rate(behavior, game_results):
                    self.run.statistics.add(category, name, value)
            for update in updates:
                self._take(behavior, update)

    # Actors and learners. ---------------------------------------------------------------------------------------------

    async def learns(self, behavior: str, slot: ActorSlot) -> None:
        """Send an actor that has a learner's agents the match table and the other learners' newest policies."""
        if behavior not in self._learners:
            return
        for name in self._game.learners.values():
            if name != behavior and name not in slot.policies:
                await self.run.launcher.open_policies(slot, name)
                if name in self._newest:
                    slot.policies[name].put_nowait(self._newest[name])
        self._sent.pop((behavior, slot.replica), None)
        if behavior in self._newest:  # otherwise, the table is sent with the first policy
            self._tell(behavior)

    def _rate(self, behavior: str, games: Columns) -> list[tuple[str, str, float]]:
        rated = self.league.rate(self._learners[behavior], games)
        return [(behavior, name, value) for _, name, value in rated]

    def _take(self, behavior: str, update: PolicyUpdate) -> None:
        self._newest[behavior] = kept = update.copy()
        # With only the behaviour name, for the actors of other learners.
        self.run.broadcaster.send_policy(kept, to_actors=True)
        is_restored = self._restored.pop(behavior, None) == kept.version
        if is_restored:  # the checkpoint already includes this policy's effects
            return
        freeze = self.league.note_policy(self._learners[behavior], kept)
        if freeze is not None:
            self._freeze(freeze)

    def _freeze(self, freeze: Freeze) -> None:
        if self._deterministic:  # all actors are idle
            self._frozen(freeze, self.league.write(freeze))
            return
        self._freezes.append(freeze)
        if self._all_written.is_set():
            self._all_written.clear()
            self.run.tasks.start(self._freeze_all())

    async def _freeze_all(self) -> None:
        """Write policies into the pool one at a time, because each may take a second on a slow disk."""
        try:
            while self._freezes:
                written = await in_thread("write into a pool", self.league.write, self._freezes[0])
                self._frozen(self._freezes.popleft(), written)
                self._tell_all()
        finally:
            self._all_written.set()

    def _frozen(self, freeze: Freeze, written: Member | OSError) -> None:
        """Handle the outcome of writing a policy, and the reset that may follow."""
        reset = self.league.frozen(freeze, written)
        if reset is None:
            return
        behavior = self._game.learners[freeze.learner]
        weights = None if reset.weights is None else np.ascontiguousarray(reset.weights.weights, "<f4").tobytes()
        whose = "its initial" if weights is None else "another learner's"
        log.info("%s restarts at step %d with %s weights.", behavior, freeze.update.step, whose)
        # In a resumed run, main's state may be older or newer than the learner, so a plain count could fall behind.
        last = self._resets.get(behavior, {"number": 0})["number"]
        self._resets[behavior] = {"number": max(freeze.update.version, last + 1), "weights": weights}
        if self._held_resets is None:
            self.learner_ready(behavior)
        else:
            self._held_resets.append(behavior)

    def learner_ready(self, behavior: str) -> None:
        """Send a learner its last reset, if any, because a learner that replaces a lost one does not know it."""
        state = self.run.behaviors.get(behavior)
        if behavior in self._resets and state is not None and state.learner is not None:
            state.learner.control.send(BeginAnew(**self._resets[behavior]))

    def _tell_all(self) -> None:
        for behavior in self._learners:
            self._tell(behavior)

    def _tell(self, behavior: str) -> None:
        """Send a learner's match table to its actors, unless they already have it."""
        table = self.league.table(self._learners[behavior])
        if table is None:
            return
        for slot in self.run.launcher.actors.values():
            if (
                self._actor_learners[slot.replica] == behavior
                and self._sent.get((behavior, slot.replica)) != table.number
            ):
                self._sent[behavior, slot.replica] = table.number
                slot.handle.control.send(table)

    # Checkpoints and the end. -----------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Wait until all policies are written, or the disk has refused them."""
        await self._all_written.wait()

    def _state(self) -> dict[str, Any]:
        self._handle_waiting()
        freezes = [[freeze.learner, freeze.parent, packed(freeze.update)] for freeze in self._freezes]
        state = {self._game.home: self.league.state_dict(), "resets": dict(self._resets), "freezes": freezes}
        return state if self._turns is None else state | {"turns": self._turns.state_dict()}

    def league_reports(self) -> Mapping[str, dict[str, Any]]:
        """Return the league's report; empty before the league exists."""
        if self._league is None:
            return {}
        turn = {"turn": self._turns.learner} if self._turns is not None else {}
        return {self._league.behavior: self._league.report() | turn}


class LeagueStage(Stage[TrajectoryBatch, TrajectoryBatch]):
    """Counts the results of a learner's games. Its actors have already removed steps that the trainer ignores."""

    def __init__(self, part: LeaguePart, behavior: str) -> None:
        self._part = part
        self._behavior = behavior
        self._context = StageContext(LEAGUE)

    def start(self, context: StageContext) -> None:
        """Store the context, which provides the statistics."""
        self._context = context

    def process(self, item: TrajectoryBatch) -> Iterator[TrajectoryBatch]:
        """Count the batch's games, and yield the batch."""
        if item.games:
            for behavior, statistic, value in self._part.games_ended(self._behavior, item.games):
                self._context.statistics.add(behavior, statistic, value)
        yield item


class LeaguePolicies(Stage[PolicyUpdate, PolicyUpdate]):
    """Passes each of a learner's new policies to the league."""

    def __init__(self, part: LeaguePart, behavior: str) -> None:
        self._part = part
        self._behavior = behavior

    def process(self, item: PolicyUpdate) -> Iterator[PolicyUpdate]:
        """Yield the policy for the learner's own actors, then pass it to the league."""
        yield item
        self._part.policy_made(self._behavior, item)

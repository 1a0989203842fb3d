"""The actor's side of a league: gives agents one learner's name, and draws the players of each game."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace.config.league_game import league_game
from headrace.pipeline.common.graph import league_seats
from headrace.pipeline.common.seeds import derive_seed
from headrace.pipeline.parts.league.group import LearnersGroup
from headrace.pipeline.parts.league.mappings import LeagueMappings
from headrace.pipeline.roles.actor import ActorPart
from headrace.pipeline.roles.runtime import Host
from headrace.pipeline.run_folder.names import behavior_folder
from headrace.queues.specs import BehaviorSpec
from headrace.stages.brains import StandIn, make_brain
from headrace.stages.brains.protocol import BrainRequest
from headrace.stages.environments.factory import EnvironmentRequest, make_group
from headrace.stages.environments.policy_mapping import MappedPlayer
from headrace.stages.environments.protocol import EnvironmentGroup
from headrace.stages.league.pool import FOLDER, Member, read_member
from headrace.stages.policy.design import design_of

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

"""The seating of an evaluation: which player decides for the agents of which behaviour id."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from headrace.queues.messages import PolicyUpdate
from headrace.queues.specs import BehaviorSpec, behavior_name, behavior_team
from headrace.stages.evaluation.opponents import EvaluationOpponents
from headrace.stages.evaluation.players import GreedyPlayer, Player, uniform_player
from headrace.stages.policy.protocol import ActingPolicy


class Seating:
    """The players of some games; each is made when its behaviour id is first seen.

    Args:
        policy: the evaluated policy, under its behaviour name.
        own: the behaviour ids that play by it, all of one team or of all teams.
        specs: of the environments; may grow.
        newest: the newest policy of each behaviour name, as far as there is one.
        opponents: play against it.
        make_policy: builds an acting policy.
        on_unknown: called with a behaviour name that has no policy yet: its agents act at random.
        brain_of: returns the brain that always decides for a behaviour id, None for one that learns. It decides unless
            opponents other than the newest policies are asked for.
    """

    def __init__(
        self,
        policy: PolicyUpdate,
        own: Collection[str],
        specs: Mapping[str, BehaviorSpec],
        newest: Mapping[str, PolicyUpdate],
        opponents: EvaluationOpponents,
        make_policy: Callable[[BehaviorSpec], ActingPolicy],
        on_unknown: Callable[[str], None],
        brain_of: Callable[[BehaviorSpec], ActingPolicy | None],
    ) -> None:
        self._policy = policy
        self._own = own
        self._specs = specs
        self._newest = newest
        self._opponents = opponents
        self._make_policy = make_policy
        self._on_unknown = on_unknown
        self._brain_of = brain_of
        self._players: dict[str, Player] = {}

    def player(self, behavior_id: str) -> Player:
        """Return the player of a behaviour id."""
        if behavior_id not in self._players:
            self._players[behavior_id] = self._make(self._specs[behavior_id])
        return self._players[behavior_id]

    def _make(self, spec: BehaviorSpec) -> Player:
        if spec.behavior_id in self._own:
            return self._by_policy(spec, self._policy)
        newest, opponent = self._newest.get(spec.name), self._is_opponent(spec.behavior_id)
        if not opponent or self._opponents.everyone_counts:
            brain = self._brain_of(spec)
            if brain is not None:
                return GreedyPlayer(brain, spec)
        if opponent:
            return self._opponents.player(spec, newest, self._by_policy)
        return self._by_policy(spec, newest)

    def _is_opponent(self, behavior_id: str) -> bool:
        if len(set(map(behavior_team, self._specs))) > 1:
            return behavior_team(behavior_id) not in map(behavior_team, self._own)
        return behavior_name(behavior_id) != self._policy.behavior_id

    def _by_policy(self, spec: BehaviorSpec, policy: PolicyUpdate | None) -> Player:
        if policy is None:
            self._on_unknown(spec.name)
            return uniform_player(spec)
        acting = self._make_policy(spec)
        acting.load(policy)
        return GreedyPlayer(acting, spec)

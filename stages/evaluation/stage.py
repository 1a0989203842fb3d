"""The evaluation stage: at regular intervals, plays policies deterministically in separate environments."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

from headrace.queues.messages import ActionBatch, PolicyUpdate
from headrace.queues.specs import BehaviorSpec, behavior_name, behavior_team
from headrace.stages.environments.protocol import (
    AgentSteps,
    EnvironmentGroup,
    GroupWithDeadlines,
    StepResult,
    maybe_await,
    play,
)
from headrace.stages.evaluation.opponents import (
    SEED,
    EvaluationOpponents,
    GreedyPlayer,
    Player,
    made_on_demand,
    uniform_player,
)
from headrace.stages.evaluation.scores import CountedEpisodes, Score, equal_shares, score_of
from headrace.stages.policy.protocol import ActingPolicy
from headrace.stages.stage import Stage, StageContext


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """A policy's score."""

    policy: PolicyUpdate
    spec: BehaviorSpec
    """Spec of the first behaviour id that the policy played."""
    score: Score
    best: bool
    """True if this score is better than all earlier scores of its behaviour."""


class EvaluationStage(Stage[PolicyUpdate, None]):
    """Receives policies, plays one whenever it is `every` steps past the last one played, and reports the scores.

    Each behaviour name has its own evaluation, and all evaluations take turns in the same environments. `opponents`
    determine which players a policy plays against, and for how many teams it plays. At the end the stage plays the last
    policies that it has not played yet.

    Args:
        make_group: builds the environments.
        make_policy: builds an acting policy.
        opponents: the policies' opponents.
        every: trainer steps between two evaluations of a behaviour.
        episodes: episodes per evaluation.
        report: called with each result.
        best: in a resumed run, the best scores so far, keyed by behaviour name.
        before_reset: called with the seed before the environments are reset.
        brain_of: returns the brain that always decides for a behaviour id, or None if the behaviour learns.
    """

    may_block = True

    def __init__(
        self,
        make_group: Callable[[], EnvironmentGroup],
        make_policy: Callable[[BehaviorSpec], ActingPolicy],
        opponents: EvaluationOpponents,
        every: int,
        episodes: int,
        report: Callable[[EvaluationResult], object],
        best: Mapping[str, float] | None = None,
        before_reset: Callable[[int], None] = lambda seed: None,
        brain_of: Callable[[BehaviorSpec], ActingPolicy | None] = lambda spec: None,
    ) -> None:
        self._make_group = make_group
        self._make_policy = make_policy
        self._opponents = opponents
        self._every = every
        self._episodes = episodes
        self._report = report
        self._best = dict(best or {})
        self._before_reset = before_reset
        self._brain_of = brain_of
        self._context = StageContext("evaluation")
        self._group: EnvironmentGroup | None = None
        self._ticks = 0
        self._newest: dict[str, PolicyUpdate] = {}
        self._due: dict[str, int] = {}
        self._played: dict[str, int] = {}
        self._warned: set[str] = set()

    def start(self, context: StageContext) -> None:
        """Build the environments."""
        self._context = context
        self._group = self._make_group()

    def stop(self) -> Awaitable[None] | None:
        """Close the environments."""
        return self._group.close() if self._group is not None else None

    def progress(self) -> int | None:
        """Return the number of ticks; None if the group itself enforces deadlines."""
        return None if isinstance(self._group, GroupWithDeadlines) and self._group.has_deadlines else self._ticks

    async def process(self, item: PolicyUpdate) -> AsyncIterator[None]:
        """Play the policy, whose `behavior_id` is a behaviour name, if an evaluation is due."""
        name = item.behavior_id
        self._newest[name] = item.copy()
        if item.step >= self._due.get(name, self._every):
            await self._evaluate(name)
        return
        yield  # makes this an async generator, as the base class requires, although it yields nothing

    async def finish(self) -> AsyncIterator[None]:
        """Play the last policies that have not been played, so even a short run has a best policy."""
        for name, policy in self._newest.items():
            if policy.version and policy.step != self._played.get(name):
                await self._evaluate(name)
        return
        yield  # as in `process`

    async def _evaluate(self, name: str) -> None:
        policy = self._newest[name]
        self._due[name] = policy.step + self._every - policy.step % self._every
        self._played[name] = policy.step
        counted, spec = await self.play(policy)
        returns = [value for episodes in counted for value in episodes.returns]
        if not returns:
            self._warn(name, f"no episode of {name} ended in the evaluation environments, so {name} has no score")
            return
        score = score_of(returns, [value for episodes in counted for value in episodes.lengths])
        best = name not in self._best or score.mean > self._best[name]
        if best:
            self._best[name] = score.mean
        self._report(EvaluationResult(policy, spec, score, best))

    async def play(self, policy: PolicyUpdate) -> tuple[list[CountedEpisodes], BehaviorSpec]:
        """Play a policy; return the counted episodes of each of its behaviour ids, and the first id's spec."""
        group, name = self._group, policy.behavior_id
        assert group is not None, "the stage was not started"

        def at_random(behavior_id: str, steps: AgentSteps) -> ActionBatch:
            return uniform_player(group.behavior_specs[behavior_id])(steps)

        async for result in play(group, at_random, await self._reset(group)):
            specs = group.behavior_specs.items()
            start, ids = result, [i for i, s in specs if behavior_name(i) == name and self._brain_of(s) is None]
            if ids:  # a behaviour id may appear after the start
                break
            self._ticks += 1
        ids.sort(key=lambda i: (behavior_team(i), i))
        counted = {
            behavior_id: CountedEpisodes(equal_shares(int(share), group.num_envs))
            for behavior_id, share in zip(ids, equal_shares(self._episodes, len(ids)), strict=True)
        }
        teams = list(dict.fromkeys(map(behavior_team, ids)))
        sides: list[int | None] = [*teams]
        if self._opponents.everyone_counts or len(teams) == 1:
            sides = [None]
            self._warn_of_all_sides(name, len(teams))
        for number, side in enumerate(sides):
            if number:
                start = await self._reset(group)
            playing = {i: counts for i, counts in counted.items() if side is None or behavior_team(i) == side}
            await self._play_side(group, policy, playing, start)
        return [*counted.values()], group.behavior_specs[ids[0]]

    async def _reset(self, group: EnvironmentGroup) -> StepResult:
        self._before_reset(SEED)
        return await maybe_await(group.reset, SEED)

    async def _play_side(
        self, group: EnvironmentGroup, policy: PolicyUpdate, counted: Mapping[str, CountedEpisodes], start: StepResult
    ) -> None:
        """Play until all episodes in `counted` have ended; the policy plays for the behaviour ids in `counted`."""
        players = made_on_demand(lambda behavior_id: self._player(group, behavior_id, policy, counted))
        async for result in play(group, players, start):
            for behavior_id, episodes in counted.items():
                episodes.add(result.steps.get(behavior_id), result.lost, result.closed)
            if all(episodes.complete for episodes in counted.values()):
                return
            self._ticks += 1

    def _player(
        self, group: EnvironmentGroup, behavior_id: str, policy: PolicyUpdate, evaluated: Collection[str]
    ) -> Player:
        """Make a behaviour id's player, given the behaviour ids that the evaluated policy plays.

        Brains that always decide for a behaviour id replace opponents only if the opponents are the newest policies.
        """
        spec = group.behavior_specs[behavior_id]
        if behavior_id in evaluated:
            return self._by_policy(spec, policy)
        if len(set(map(behavior_team, group.behavior_specs))) > 1:
            opponent = spec.team not in map(behavior_team, evaluated)
        else:
            opponent = spec.name != policy.behavior_id
        newest = self._newest.get(spec.name)
        if not opponent or self._opponents.everyone_counts:
            brain = self._brain_of(spec)
            if brain is not None:
                return GreedyPlayer(brain, spec)
        return self._opponents.player(spec, newest, self._by_policy) if opponent else self._by_policy(spec, newest)

    def _by_policy(self, spec: BehaviorSpec, policy: PolicyUpdate | None) -> Player:
        if policy is None:
            self._warn(spec.name, f"{spec.name} has no policy yet, so its agents act at random")
            return uniform_player(spec)
        acting = self._make_policy(spec)
        acting.load(policy)
        return GreedyPlayer(acting, spec)

    def _warn_of_all_sides(self, name: str, teams: int) -> None:
        if teams > 1:
            self._warn(
                f"{name} on all sides",
                f"{name} plays for all {teams} teams of its games, so its mean return does not measure its strength: "
                f"in a zero-sum game, the mean return is 0 and {name}-best.pt is arbitrary. Compare policies with "
                "evaluation.opponents: snapshot, random, or a scripted player",
            )

    def _warn(self, about: str, message: str) -> None:
        """Log a warning once per topic `about`."""
        if about not in self._warned:
            self._warned.add(about)
            self._context.log.warning("evaluation: %s.", message)

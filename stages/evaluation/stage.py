"""The evaluation stage: at regular intervals, plays policies deterministically in separate environments."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass

import numpy as np

from headrace.queues.messages import ActionBatch, PolicyUpdate
from headrace.queues.specs import BehaviorSpec, behavior_name, behavior_team
from headrace.stages.environments.protocol import EnvironmentGroup, Punctual, StepResult, maybe_await
from headrace.stages.evaluation.episodes import CountedEpisodes, equal_shares
from headrace.stages.evaluation.opponents import SEED, EvaluationOpponents, Seating, uniform_player
from headrace.stages.policy.protocol import ActingPolicy
from headrace.stages.stage import Stage, StageContext


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """A policy's score."""

    policy: PolicyUpdate
    spec: BehaviorSpec
    """Spec of the first behaviour id that the policy played."""
    mean: float
    """Mean undiscounted return, including group rewards."""
    deviation: float
    """Population standard deviation of the returns."""
    lowest: float
    """The smallest return."""
    highest: float
    """The largest return."""
    length: float
    """Mean number of decisions per episode."""
    episodes: int
    best: bool
    """True if this score is better than all earlier scores of its behaviour."""
    shortest: int
    """Number of decisions in the shortest episode."""
    longest: int
    """Number of decisions in the longest episode."""


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
        return None if isinstance(self._group, Punctual) and self._group.has_deadlines else self._ticks

    async def process(self, item: PolicyUpdate) -> AsyncIterator[None]:
        """Play the policy, whose `behavior_id` is a behaviour name, if an evaluation is due."""
        name = item.behavior_id
        self._newest[name] = item.copy()
        if item.step >= self._due.get(name, self._every):
            await self._evaluate(name)
        return
        yield

    async def finish(self) -> AsyncIterator[None]:
        """Play the last policies that have not been played, so even a short run has a best policy."""
        for name, policy in self._newest.items():
            if policy.version and policy.step != self._played.get(name):
                await self._evaluate(name)
        return
        yield

    async def _evaluate(self, name: str) -> None:
        policy = self._newest[name]
        self._due[name] = policy.step + self._every - policy.step % self._every
        self._played[name] = policy.step
        played, spec = await self.play(policy)
        returns = np.array([value for each in played for value in each.returns])
        lengths = [value for each in played for value in each.lengths]
        if not len(returns):
            self._warn(name, f"no episode of {name} ended in the evaluation environments, so {name} has no score")
            return
        mean = float(returns.mean())
        best = name not in self._best or mean > self._best[name]
        result = EvaluationResult(
            policy,
            spec,
            mean,
            float(returns.std()),
            float(returns.min()),
            float(returns.max()),
            float(np.mean(lengths)),
            len(returns),
            best,
            min(lengths),
            max(lengths),
        )
        if best:
            self._best[name] = mean
        self._report(result)

    async def play(self, policy: PolicyUpdate) -> tuple[list[CountedEpisodes], BehaviorSpec]:
        """Play a policy; return its episodes, keyed by behaviour id, and the first id's spec."""
        group, name = self._group, policy.behavior_id
        assert group is not None, "the stage was not started"
        result = await self._reset(group)
        while not (ids := self._ids_of(name, group)):  # a behaviour id may appear after the start
            actions = {i: uniform_player(group.behavior_specs[i])(steps) for i, steps in result.steps.items()}
            result = await self._step(group, actions)
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
                result = await self._reset(group)
            playing = {i: counts for i, counts in counted.items() if side is None or behavior_team(i) == side}
            await self._play_side(group, policy, playing, result)
        return [*counted.values()], group.behavior_specs[ids[0]]

    def _ids_of(self, name: str, group: EnvironmentGroup) -> list[str]:
        """Return a behaviour's ids, except those for which a brain always decides."""
        specs = group.behavior_specs.items()
        return [i for i, spec in specs if behavior_name(i) == name and self._brain_of(spec) is None]

    async def _step(self, group: EnvironmentGroup, actions: Mapping[str, ActionBatch]) -> StepResult:
        result = await maybe_await(group.step(actions))
        self._ticks += 1
        await asyncio.sleep(0)
        return result

    async def _reset(self, group: EnvironmentGroup) -> StepResult:
        self._before_reset(SEED)
        return await maybe_await(group.reset(SEED))

    async def _play_side(
        self, group: EnvironmentGroup, policy: PolicyUpdate, counted: Mapping[str, CountedEpisodes], result: StepResult
    ) -> None:
        """Play until all episodes in `counted` have ended; the policy plays for the behaviour ids in `counted`."""
        seating = Seating(
            policy,
            counted,
            group.behavior_specs,
            self._newest,
            self._opponents,
            self._make_policy,
            lambda unknown: self._warn(unknown, f"{unknown} has no policy yet, so its agents act at random"),
            self._brain_of,
        )
        while True:
            for behavior_id, episodes in counted.items():
                episodes.add(result.steps.get(behavior_id), result.lost, result.closed)
            if all(episodes.complete for episodes in counted.values()):
                return
            actions = {i: seating.player(i)(steps) for i, steps in result.steps.items()}
            result = await self._step(group, actions)

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

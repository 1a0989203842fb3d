"""The evaluation stage: deterministic play of a policy on environments of its own, every so many trainer steps."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from queues.messages import ActionBatch, PolicyUpdate
from queues.specs import BehaviorSpec
from stages.environment.protocol import AgentSteps, EnvironmentGroup, StepResult
from stages.policy.memories import AgentMemories
from stages.policy.protocol import ActingPolicy
from stages.stage import Stage, StageContext

SEED = 20_261
"""All policies play the same episodes, so that their scores can be compared."""


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The score of a policy."""

    policy: PolicyUpdate
    spec: BehaviorSpec
    mean: float
    """Mean undiscounted return."""
    deviation: float
    """Standard deviation of the returns."""
    episodes: int
    best: bool
    """True if better than all before it."""


class EvaluationStage(Stage[PolicyUpdate, None]):
    """Receives policies, plays those that are `every` steps past the last one played, and reports their scores.

    Args:
        behavior_id: the one of which agents' returns count; agents of other behaviour ids act at random.
        make_group: builds the environments.
        make_policy: builds an acting policy.
        every: trainer steps between two evaluations.
        episodes: episodes per evaluation.
        report: called with each result.
        best: the best score so far, of a resumed run.
        before_reset: called before the environments are reset, with the seed.
    """

    may_block = True

    def __init__(
        self,
        behavior_id: str,
        make_group: Callable[[], EnvironmentGroup],
        make_policy: Callable[[BehaviorSpec], ActingPolicy],
        every: int,
        episodes: int,
        report: Callable[[EvaluationResult], None],
        best: float | None = None,
        before_reset: Callable[[int], None] = lambda seed: None,
    ) -> None:
        self._behavior_id = behavior_id
        self._make_group = make_group
        self._make_policy = make_policy
        self._every = every
        self._episodes = episodes
        self._report = report
        self._due = every
        self._best = best
        self._before_reset = before_reset
        self._group: EnvironmentGroup | None = None

    def start(self, context: StageContext) -> None:
        """Build the environments."""
        self._group = self._make_group()

    def stop(self) -> Awaitable[None] | None:
        """Close them."""
        return self._group.close() if self._group is not None else None

    async def process(self, item: PolicyUpdate) -> AsyncIterator[None]:
        """Play the policy if an evaluation is due."""
        if item.step >= self._due:
            self._due = item.step + self._every - item.step % self._every
            returns, spec = await self.play(item)
            mean = float(returns.mean())
            best = self._best is None or mean > self._best
            self._best = max(mean, self._best) if self._best is not None else mean
            self._report(EvaluationResult(item, spec, mean, float(returns.std()), len(returns), best))
        return
        yield

    async def play(self, update: PolicyUpdate) -> tuple[np.ndarray[Any, np.dtype[np.float64]], BehaviorSpec]:
        """Returns (own and group's rewards) of the first `episodes` episodes to end, and the behaviour's spec."""
        assert self._group is not None, "the stage was not started"
        group, random = self._group, np.random.default_rng(SEED)
        self._before_reset(SEED)
        result = await _settled(group.reset(SEED))
        spec = group.behavior_specs[self._behavior_id]
        policy = self._make_policy(spec)
        policy.load(update)
        player = _Player(policy, AgentMemories.for_policy(policy, spec.actions), random)
        running: dict[int, float] = {}
        returns: list[float] = []
        # A fixed share per environment: the first to end would be the short episodes, which often score otherwise.
        quota = -(-self._episodes // group.num_envs)
        ended_in = np.zeros(group.num_envs, np.int64)
        while len(returns) < self._episodes:
            steps = result.steps.get(self._behavior_id)
            if steps is not None:
                shared = steps.group_rewards  # or the best policy of a group would be that of egoists
                rewards = steps.rewards if shared is None else steps.rewards + shared
                for row, agent in enumerate(steps.agent_ids.tolist()):
                    running[agent] = running.get(agent, 0.0) + float(rewards[row])
                    if row < steps.ended:
                        total, env_id = running.pop(agent), steps.env_ids[row]
                        ended_in[env_id] += 1
                        if ended_in[env_id] <= quota and len(returns) < self._episodes:
                            returns.append(total)
            actions = {i: self._decide(i, player, result, group.behavior_specs, random) for i in result.steps}
            result = await _settled(group.step(actions))
            await asyncio.sleep(0)
        return np.array(returns), spec

    def _decide(
        self,
        behavior_id: str,
        player: _Player,
        result: StepResult,
        specs: Mapping[str, BehaviorSpec],
        random: np.random.Generator,
    ) -> ActionBatch:
        steps, actions = result.steps[behavior_id], specs[behavior_id].actions
        if behavior_id == self._behavior_id:
            return player.decide(steps)
        count = len(steps.agent_ids) - steps.ended
        continuous = random.uniform(-1, 1, (count, actions.continuous_size)).astype(np.float32)
        scores = random.random((count, actions.mask_size))
        if steps.action_masks is not None:
            scores[~steps.action_masks] = -1.0  # never the highest: of each branch something is allowed
        branches = np.split(scores, np.cumsum(actions.discrete_branches)[:-1], axis=1)
        discrete = np.stack([branch.argmax(axis=1) for branch in branches], axis=1) if actions.mask_size else scores
        return ActionBatch(continuous, discrete.astype(np.int32))


class _Player:
    """The policy that is evaluated, its agents' memories, and its source of chance."""

    def __init__(self, policy: ActingPolicy, memories: AgentMemories | None, random: np.random.Generator) -> None:
        self._policy = policy
        self._memories = memories
        self._random = random

    def decide(self, steps: AgentSteps) -> ActionBatch:
        """The most likely actions of the agents that ask for one."""
        observations = tuple(o[steps.ended :] for o in steps.observations)
        agent_ids, episode_ids = steps.agent_ids[steps.ended :], steps.episode_ids[steps.ended :]
        recall = None
        if self._memories is not None:
            self._memories.forget(steps.agent_ids[: steps.ended])
            recall = self._memories.recall(agent_ids, episode_ids)
        decision = self._policy.act(observations, steps.action_masks, self._random, deterministic=True, recall=recall)
        if self._memories is not None and decision.recall is not None:
            self._memories.keep(agent_ids, episode_ids, decision.recall)
        return decision.actions


async def _settled(result: Any) -> StepResult:
    if inspect.isawaitable(result):
        result = await result
    return result  # type: ignore[no-any-return]

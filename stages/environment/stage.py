"""The environment stage: steps a group of environments and asks the current policies for actions.

It emits what happened, as StepBatches. What becomes of them, trajectories, is the agent processor's job; the two
work hand in hand in `stages.actor`, without a queue between them, because the environment may write over its
observation arrays at the next step.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queues.columns import GAME_COLUMNS
from queues.messages import Array, Columns, PolicyUpdate, StepBatch
from queues.specs import BehaviorSpec
from stages.environment.lineup import Lineup, Lineups
from stages.environment.protocol import ActionBatch, AgentSteps, EnvironmentGroup, StepResult
from stages.errors import BrokenEnvironmentError
from stages.policy.memories import AgentMemories
from stages.policy.protocol import ActingPolicy, Decision, Recall
from stages.stage import Source, StageContext

Parts = list[tuple[Lineup, NDArray[np.intp] | None]]
"""The rows of a tick by lineup; None for all of them."""


class EnvironmentStage(Source[StepBatch]):
    """Steps one group of environments.

    For policies with memory it keeps what each agent remembers, from decision to decision and no longer than the
    agent's episode. What a decision brings to mind is kept once the group is stepped with it, so that a decision which
    is taken anew starts from the same memories.

    Args:
        make_group: builds the group; called again when it has to be restarted.
        lineups: who plays with which policy.
        first_agent_id: added to the group's agent ids, so that they are unique across actors.
        deterministic: act by the mean and the most likely choice.
    """

    def __init__(
        self,
        make_group: Callable[[], EnvironmentGroup],
        lineups: Lineups,
        first_agent_id: int = 0,
        deterministic: bool = False,
    ) -> None:
        self._make_group = make_group
        self._lineups = lineups
        self._first_agent_id = first_agent_id
        self._deterministic = deterministic
        self._group: EnvironmentGroup | None = None
        self._context = StageContext("environment")
        self._result = StepResult({})
        self._finished: dict[str, Columns] = {}
        self._actions: dict[str, ActionBatch] = {}
        self._memories: dict[str, AgentMemories] = {}
        self._to_remember: list[tuple[AgentMemories, NDArray[np.int64], NDArray[np.int64], Recall]] = []
        self._decided_from: Mapping[str, Any] = {}
        self._known: set[str] = set()
        self._random = np.random.default_rng(0)
        self._stop = False

    @property
    def specs(self) -> Mapping[str, BehaviorSpec]:
        """The behaviours seen so far, by behaviour id."""
        return self._group.behavior_specs if self._group is not None else {}

    @property
    def num_envs(self) -> int:
        """Environment instances in the group."""
        return self._group.num_envs if self._group is not None else 0

    @property
    def lineups(self) -> Lineups:
        """Who plays with which policy."""
        return self._lineups

    def start(self, context: StageContext) -> None:
        """Build the group."""
        self._context = context
        self._group = self._make_group()

    def stop(self) -> None:
        """Close the group."""
        if self._group is not None:
            self._group.close()

    async def reset(self, seed: int) -> None:
        """Start all instances anew; everything that follows is determined by the seed and the policies."""
        self._random = np.random.default_rng(seed)
        self._result = await self._call("reset", lambda group: group.reset(seed))
        self._memories, self._to_remember = {}, []
        self._announce()
        self._finished = {}
        self._lineups.open_games(self.num_envs)

    async def restart(self, seed: int) -> None:
        """Build the group anew after it broke, and reset it."""
        old, self._group = self._group, None
        try:
            if old is not None:
                old.close()
        except Exception as error:  # a broken environment may not even close: that must not hinder the new one
            self._context.log.debug("closing the broken environment failed: %s", error)
        self._group = self._make_group()
        await self.reset(seed)

    def decide(self) -> list[StepBatch]:
        """Ask the policies for actions on what the last step brought; one StepBatch per behaviour id."""
        self._decided_from = self._random.bit_generator.state
        return self._decide()

    def decide_again(self) -> list[StepBatch]:
        """Decide anew on the same step, by newer policies and with the same chance."""
        self._random.bit_generator.state = self._decided_from
        return self._decide()

    async def advance(self) -> None:
        """Step the group with the actions last decided."""
        actions = self._actions
        for memories, agent_ids, episode_ids, recall in self._to_remember:
            memories.keep(agent_ids, episode_ids, recall)
        self._result = await self._call("step", lambda group: group.step(actions))
        if len(self.specs) > len(self._known):
            self._announce()
        self._finished = self._finish_games(self._result) if self._lineups.self_play else {}
        for name, value in self._result.statistics.items():
            self._context.statistics.add(next(iter(self.specs.values())).name, name, value)

    async def produce(self) -> AsyncIterator[StepBatch]:
        """Yield StepBatches until asked to stop: the stage alone, without flow control."""
        await self.reset(self._context.seed)
        while not self._stop:
            for step in self.decide():
                yield step
            await self.advance()

    def request_stop(self) -> None:
        """Let `produce` end after this tick."""
        self._stop = True

    def update(self, update: PolicyUpdate) -> None:
        """Act by this policy from the next decision on."""
        self._lineups.update(update)

    async def _call(self, what: str, call: Callable[[EnvironmentGroup], Any]) -> StepResult:
        assert self._group is not None, "the stage was not started"
        try:
            result = call(self._group)
            if inspect.isawaitable(result):
                result = await result
        except BrokenEnvironmentError:
            raise
        except Exception as error:
            raise BrokenEnvironmentError(
                f"the environment's {what}() failed: {type(error).__name__}: {error}"
            ) from error
        return result  # type: ignore[no-any-return]

    def _announce(self) -> None:
        for behavior_id, spec in self.specs.items():
            if behavior_id not in self._known:  # a restarted group brings nobody new
                self._known.add(behavior_id)
                self._lineups.add_behavior(spec)

    def _decide(self) -> list[StepBatch]:
        self._actions, self._to_remember = {}, []
        return [
            self._decide_for(behavior_id, steps, self._finished.get(behavior_id, {}))
            for behavior_id, steps in self._result.steps.items()
            if len(steps.agent_ids)
        ]

    def _decide_for(self, behavior_id: str, steps: AgentSteps, games: Columns) -> StepBatch:
        deciding = slice(steps.ended, None)
        observations = tuple(o[deciding] for o in steps.observations)
        agent_ids = steps.agent_ids + self._first_agent_id
        count = len(agent_ids) - steps.ended
        nobody: Parts = [(self._lineups.current, None)]
        parts = self._lineups.split(steps.env_ids[deciding]) if count else nobody
        first = parts[0][0]
        memories = self._memories_of(behavior_id, first.players[behavior_id].policy)
        recall = None
        if memories is not None:
            memories.forget(agent_ids[: steps.ended])
            recall = memories.recall(agent_ids[deciding], steps.episode_ids[deciding])
        if len(parts) == 1:
            decision = self._act(first, behavior_id, observations, steps.action_masks, recall)
            stamp = _Stamp.filled(count, first, behavior_id)
        else:
            decision, stamp = self._decide_mixed(parts, behavior_id, observations, steps.action_masks, recall, count)
        if memories is not None and decision.recall is not None:
            self._to_remember.append((memories, agent_ids[deciding], steps.episode_ids[deciding], decision.recall))
        self._actions[behavior_id] = decision.actions
        return StepBatch(
            behavior_id=behavior_id,
            group=0,
            agent_ids=agent_ids,
            env_ids=steps.env_ids,
            episode_ids=steps.episode_ids,
            observations=steps.observations,
            rewards=steps.rewards,
            ended=steps.ended,
            terminated=steps.terminated,
            truncated=steps.truncated,
            decisions=decision.columns,
            policy_versions=stamp.versions,
            generations=stamp.generations,
            learning=stamp.learning,
            opponents=stamp.opponents,
            games=games,
        )

    def _memories_of(self, behavior_id: str, policy: ActingPolicy) -> AgentMemories | None:
        """What the agents of a behaviour id remember, whichever of its policies acts; None without memory."""
        if not policy.memory_size:
            return None
        memories = self._memories.get(behavior_id)
        if memories is None:
            memories = AgentMemories.of(policy, self.specs[behavior_id].actions)
            assert memories is not None
            self._memories[behavior_id] = memories
        return memories

    def _act(
        self,
        lineup: Lineup,
        behavior_id: str,
        observations: tuple[Array, ...],
        masks: NDArray[np.bool_] | None,
        recall: Recall | None,
    ) -> Decision:
        policy = lineup.players[behavior_id].policy
        decision = policy.act(observations, masks, self._random, self._deterministic, recall)
        if masks is not None:
            return Decision(decision.actions, {**decision.columns, "action_masks": masks}, decision.recall)
        return decision

    def _decide_mixed(
        self,
        parts: Parts,
        behavior_id: str,
        observations: tuple[Array, ...],
        masks: NDArray[np.bool_] | None,
        recall: Recall | None,
        count: int,
    ) -> tuple[Decision, _Stamp]:
        """One act() per lineup, put together again in the order of the rows."""
        stamp = _Stamp.empty(count)
        columns: dict[str, Array] = {}
        continuous = discrete = None
        after = None if recall is None else Recall(recall.memories.copy(), recall.previous_actions.copy())
        for lineup, rows in parts:
            assert rows is not None
            part_masks = masks[rows] if masks is not None else None
            part_recall = None if recall is None else Recall(recall.memories[rows], recall.previous_actions[rows])
            part = self._act(lineup, behavior_id, tuple(o[rows] for o in observations), part_masks, part_recall)
            if continuous is None or discrete is None:
                continuous = np.empty((count, *part.actions.continuous.shape[1:]), np.float32)
                discrete = np.empty((count, *part.actions.discrete.shape[1:]), np.int32)
                columns = {name: np.empty((count, *c.shape[1:]), c.dtype) for name, c in part.columns.items()}
            continuous[rows], discrete[rows] = part.actions.continuous, part.actions.discrete
            for name, column in part.columns.items():
                columns[name][rows] = column
            if after is not None and part.recall is not None:
                after.memories[rows] = part.recall.memories
                after.previous_actions[rows] = part.recall.previous_actions
            stamp.fill(rows, lineup, behavior_id)
        assert continuous is not None
        assert discrete is not None
        return Decision(ActionBatch(continuous, discrete), columns, after), stamp

    def _finish_games(self, result: StepResult) -> dict[str, Columns]:
        """Game columns by the learning team's behaviour id; the instances' next games get the current lineup."""
        games = result.games
        if games is None:  # an environment that declares no games: its episodes are its games, and nobody wins
            ended = [steps.env_ids[: steps.ended] for steps in result.steps.values() if steps.ended]
            if ended:
                self._lineups.restart(np.unique(np.concatenate(ended)))
            return {}
        rows: dict[str, list[tuple[int, int, int, float]]] = {}
        for env_id, outcomes in zip(games.env_ids, games.outcomes, strict=True):
            lineup = self._lineups.games[env_id]
            team = lineup.learning_team
            learner = next((i for i in lineup.players if lineup.learns(i)), None)
            if team is not None and learner is not None:
                rows.setdefault(learner, []).append((lineup.generation, team, lineup.opponent, float(outcomes[team])))
        self._lineups.restart(games.env_ids)
        return {
            behavior_id: {
                column.name: np.array([row[i] for row in found], column.dtype) for i, column in enumerate(GAME_COLUMNS)
            }
            for behavior_id, found in rows.items()
        }


class _Stamp:
    """The self-play stamp and policy version of each decision of a tick."""

    __slots__ = ("generations", "learning", "opponents", "versions")

    def __init__(
        self,
        versions: NDArray[np.int64],
        generations: NDArray[np.int32],
        learning: NDArray[np.bool_],
        opponents: NDArray[np.int32],
    ) -> None:
        self.versions = versions
        self.generations = generations
        self.learning = learning
        self.opponents = opponents

    @classmethod
    def empty(cls, count: int) -> _Stamp:
        return cls(
            np.empty(count, np.int64), np.empty(count, np.int32), np.empty(count, np.bool_), np.empty(count, np.int32)
        )

    @classmethod
    def filled(cls, count: int, lineup: Lineup, behavior_id: str) -> _Stamp:
        stamp = cls.empty(count)
        stamp.fill(slice(None), lineup, behavior_id)
        return stamp

    def fill(self, rows: Any, lineup: Lineup, behavior_id: str) -> None:
        self.versions[rows] = lineup.players[behavior_id].version
        self.generations[rows] = lineup.generation
        self.learning[rows] = lineup.learns(behavior_id)
        self.opponents[rows] = lineup.opponent

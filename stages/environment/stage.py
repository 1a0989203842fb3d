"""The environment stage: steps a group of environments and asks the current policies for actions.

It emits what happened, as StepBatches. What becomes of them, trajectories, is the agent processor's job; the two
work hand in hand in `stages.actor`, without a queue between them, because the environment may write over its
observation arrays at the next step.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from logging import Logger
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queues.messages import ActionBatch, Array, Columns, PolicyUpdate, StepBatch
from queues.specs import BehaviorSpec, behavior_name
from stages.environment.game_endings import GameWatch
from stages.environment.lineup import Lineup, Lineups, Player, nobody
from stages.environment.parameters import EpisodeParameters, tell
from stages.environment.protocol import AgentSteps, EnvironmentGroup, Measured, StepResult, Stoppable
from stages.error_text import describe_error
from stages.errors import BrokenEnvironmentError, EnvironmentEnded, StageError
from stages.policy.memories import AgentMemories
from stages.policy.protocol import ActingPolicy, Decision, Recall
from stages.stage import Source, StageContext

Parts = list[tuple[Lineup, NDArray[np.intp] | None]]
"""The rows of a tick by lineup; None for all of them."""
_ACTING = 1
"""Sets the chance of decisions apart from all else that is made of the same seed."""


class EnvironmentStage(Source[StepBatch]):
    """Steps one group of environments.

    For policies with memory it keeps what each agent remembers, from decision to decision and no longer than the
    agent's episode. What a decision brings to mind is kept once the group is stepped with it, so that a decision which
    is taken anew starts from the same memories.

    Args:
        make_group: builds the group; called again when it has to be restarted.
        lineups: who plays with which policy.
        first_agent_id: added to the group's agent ids, so that they are unique across actors.
        deterministic: tells of a behaviour name whether its agents act by the mean and the most likely choice.
    """

    def __init__(
        self,
        make_group: Callable[[], EnvironmentGroup],
        lineups: Lineups,
        first_agent_id: int = 0,
        deterministic: Callable[[str], bool] = nobody,
    ) -> None:
        self._make_group = make_group
        self._lineups = lineups
        self._first_agent_id = first_agent_id
        self._deterministic = deterministic
        self._group: EnvironmentGroup | None = None
        self.parameters = EpisodeParameters()
        """What the environments are told at the start of each episode."""
        self._begun = self.parameters.begun
        self._context = StageContext("environment")
        self._result = StepResult({})
        self._games = GameWatch(lineups)
        self._finished: dict[str, Columns] = {}
        self._actions: dict[str, ActionBatch] = {}
        self._memories: dict[str, AgentMemories] = {}
        self._to_remember: list[tuple[AgentMemories, NDArray[np.int64], NDArray[np.int64], Recall]] = []
        self._decided_from: Mapping[str, Any] = {}
        self._known: set[str] = set()
        self._random = np.random.default_rng(0)
        self._tick = 0
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
    def lost(self) -> NDArray[np.int32] | None:
        """The instances that broke at the last tick and that the group itself begins anew; None for none."""
        return self._result.lost

    @property
    def lineups(self) -> Lineups:
        """Who plays with which policy."""
        return self._lineups

    def start(self, context: StageContext) -> None:
        """Build the group."""
        self._context = context
        self._build(context.log if not context.replica else None)  # one actor's word is enough

    def stop(self) -> Awaitable[None] | None:
        """Close the group."""
        return self._group.close() if self._group is not None else None

    async def reset(self, seed: int, stretch: tuple[int, ...] = ()) -> None:
        """Start all instances anew; everything that follows is determined by the arguments and the policies.

        Args:
            seed: of everything but parameters that are drawn with seeds of their own.
            stretch: sets this part of the run apart, so that those are not the same in each.
        """
        # Not the seed alone: an environment that makes its generator of it would draw the same numbers as its agents.
        self._random = np.random.default_rng((seed, _ACTING))
        self.parameters.begin_anew(seed, self._context.replica, *stretch)
        self._result = await self._call("reset", lambda group: group.reset(seed))
        self._tick += 1
        self._memories, self._to_remember = {}, []
        self._announce()
        if self._result.statistics:
            self._report(self._result.statistics)
        self._finished = {}
        self._lineups.open_games(self.num_envs)
        self._games.begin(self._result)

    async def restart(self, seed: int, stretch: tuple[int, ...] = ()) -> None:
        """Build the group anew after it broke, and reset it."""
        old, self._group = self._group, None
        try:
            closing = old.close() if old is not None else None
            if closing is not None:
                await closing
        except Exception as error:  # a broken environment may not even close: that must not hinder the new one
            self._context.log.debug("closing the broken environment failed: %s", error)
        self._build()
        await self.reset(seed, stretch)

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
        self._begun = self.parameters.begun
        self._result = await self._call("step", lambda group: group.step(actions))
        self._tick += 1
        if len(self.specs) > len(self._known):
            self._announce()
        if self._result.lost is not None:
            self._lose(self._result.lost)
        named = type(self._group).__name__
        self._finished = self._games.finish(self._result, named) if self._lineups.self_play else {}
        if self._result.statistics:
            self._report(self._result.statistics)

    async def produce(self) -> AsyncIterator[StepBatch]:
        """Yield StepBatches until asked to stop: the stage alone, without flow control."""
        await self.reset(self._context.seed)
        while not self._stop:
            for step in self.decide():
                yield step
            await self.advance()

    def request_stop(self) -> None:
        """Let `produce` end after this tick, and this tick end soon."""
        self._stop = True
        if isinstance(self._group, Stoppable):
            self._group.request_stop()

    def update(self, update: PolicyUpdate) -> None:
        """Act by this policy from the next decision on."""
        self._lineups.update(update)

    def _lose(self, env_ids: NDArray[np.int32]) -> None:
        """Instances have begun anew by themselves: so do their games. Memories are told apart by episode."""
        self._games.forget(env_ids)
        self._lineups.restart(env_ids)

    def _report(self, statistics: Mapping[str, float | Measured]) -> None:
        """Report the environment's own numbers, under each behaviour's name."""
        report = self._context.statistics
        for behavior in dict.fromkeys(map(behavior_name, self.specs)):
            for name, value in statistics.items():
                if isinstance(value, Measured):
                    report.extend(behavior, name, value.values, value.how)
                else:
                    report.add(behavior, name, value)

    def _build(self, log: Logger | None = None) -> None:
        self._group = self._make_group()
        tell(self._group, self.parameters, log)

    async def _call(self, what: str, call: Callable[[EnvironmentGroup], Any]) -> StepResult:
        assert self._group is not None, "the stage was not started"
        try:
            result = call(self._group)
            if inspect.isawaitable(result):
                result = await result
        except (StageError, EnvironmentEnded):
            raise
        except Exception as error:
            raise BrokenEnvironmentError(f"the environment's {what}() failed: {describe_error(error)}") from error
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
        alone: Parts = [(self._lineups.current, None)]
        parts = self._lineups.split(steps.env_ids[deciding]) if count else alone
        greedy = self._deterministic(behavior_name(behavior_id))
        players = _by_player(parts, behavior_id)
        memories = self._memories_of(behavior_id, players[0][0].policy)
        recall = None
        if memories is not None:
            memories.forget(agent_ids[: steps.ended])
            recall = memories.recall(agent_ids[deciding], steps.episode_ids[deciding])
        if len(players) == 1:
            decision = self._act(players[0][0], observations, steps.action_masks, recall, greedy)
        else:
            decision = self._decide_mixed(players, observations, steps.action_masks, recall, greedy, count)
        stamp = _Stamp(count, parts, behavior_id)
        if memories is not None and decision.recall is not None:
            self._to_remember.append((memories, agent_ids[deciding], steps.episode_ids[deciding], decision.recall))
        self._actions[behavior_id] = decision.actions
        group_ids, group_rewards = self._groups_of(behavior_id, steps)
        return StepBatch(
            behavior_id=behavior_id,
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
            tick=self._tick,
            group_ids=group_ids,
            group_rewards=group_rewards,
            parameters=self._generations_of(steps) if self.parameters else None,
        )

    def _generations_of(self, steps: AgentSteps) -> NDArray[np.int32]:
        """[ended] generation of the parameters that each ended episode began under."""
        return self._begun[steps.env_ids[: steps.ended]] if steps.parameters is None else steps.parameters

    def _groups_of(
        self, behavior_id: str, steps: AgentSteps
    ) -> tuple[NDArray[np.int64] | None, NDArray[np.float32] | None]:
        """Group ids that are unique across actors, and the groups' rewards; None where the behaviour has no groups."""
        if not self.specs[behavior_id].grouped:
            if steps.group_ids is not None or steps.group_rewards is not None:
                raise StageError(
                    f"{behavior_id}: the environment gives group_ids or group_rewards, but its BehaviorSpec is not "
                    "grouped; make the spec with grouped=True"
                )
            return None, None
        count = len(steps.agent_ids)
        given = steps.group_ids
        ids = np.zeros(count, np.int64) if given is None else np.where(given, given + self._first_agent_id, 0)
        rewards = steps.group_rewards
        return ids, np.zeros(count, np.float32) if rewards is None else rewards

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
        player: Player,
        observations: tuple[Array, ...],
        masks: NDArray[np.bool_] | None,
        recall: Recall | None,
        greedy: bool,
    ) -> Decision:
        decision = player.policy.act(observations, masks, self._random, greedy, recall)
        if masks is not None:
            return Decision(decision.actions, {**decision.columns, "action_masks": masks}, decision.recall)
        return decision

    def _decide_mixed(
        self,
        players: list[tuple[Player, NDArray[np.intp] | None]],
        observations: tuple[Array, ...],
        masks: NDArray[np.bool_] | None,
        recall: Recall | None,
        greedy: bool,
        count: int,
    ) -> Decision:
        """One act() per player, put together again in the order of the rows."""
        columns: dict[str, Array] = {}
        continuous = discrete = None
        after = None if recall is None else Recall(recall.memories.copy(), recall.previous_actions.copy())
        for player, rows in players:
            assert rows is not None
            part_masks = masks[rows] if masks is not None else None
            part_recall = None if recall is None else Recall(recall.memories[rows], recall.previous_actions[rows])
            part = self._act(player, tuple(o[rows] for o in observations), part_masks, part_recall, greedy)
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
        assert continuous is not None
        assert discrete is not None
        return Decision(ActionBatch(continuous, discrete), columns, after)


def _by_player(parts: Parts, behavior_id: str) -> list[tuple[Player, NDArray[np.intp] | None]]:
    """The rows of a tick by who decides for them: of several lineups, many have the same player."""
    found: dict[int, tuple[Player, list[NDArray[np.intp]]]] = {}
    for lineup, rows in parts:
        player = lineup.players[behavior_id]
        found.setdefault(id(player), (player, []))[1].extend([] if rows is None else [rows])
    if len(found) == 1:
        return [(player, None) for player, _ in found.values()]
    return [(player, np.sort(np.concatenate(rows))) for player, rows in found.values()]


class _Stamp:
    """The self-play stamp and policy version of each decision of a tick; plain where a behaviour has no self-play."""

    __slots__ = ("generations", "learning", "opponents", "versions")

    def __init__(self, count: int, parts: Parts, behavior_id: str) -> None:
        self.versions = np.empty(count, np.int64)
        self.generations = np.zeros(count, np.int32)
        self.learning = np.empty(count, np.bool_)
        self.opponents = np.full(count, -1, np.int32)
        for lineup, some in parts:
            rows: Any = slice(None) if some is None else some
            player = lineup.players[behavior_id]
            self.versions[rows] = player.version
            self.learning[rows] = lineup.learns(behavior_id)
            if not player.plain:
                self.generations[rows] = lineup.generation
                self.opponents[rows] = lineup.opponent

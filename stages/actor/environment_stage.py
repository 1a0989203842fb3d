"""The environment stage: steps a group of environments and gets actions from the current policies.

It emits StepBatches, from which the agent processor makes trajectories. The two stages share a task in `stages/actor/`,
without a queue between them, because the environment may overwrite its observation arrays at the next step.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from logging import Logger
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch, Array, Columns, StepBatch
from headrace.queues.specs import BehaviorSpec, behavior_name
from headrace.stages.actor.game_tracker import GameTracker
from headrace.stages.actor.policy_mapping import MappedPlayer, PolicyMapping, PolicyMappings, no_behavior
from headrace.stages.actor.remote_policy import DecisionClient, RemotePolicy
from headrace.stages.environments.parameters import EpisodeParameters, connect_parameters
from headrace.stages.environments.protocol import (
    AgentSteps,
    EnvironmentGroup,
    GroupWithDeadlines,
    StatisticValues,
    StepResult,
    StoppableGroup,
    maybe_await,
)
from headrace.stages.errors import BrokenEnvironmentError, EnvironmentEnded, StageError, describe_error, is_failure
from headrace.stages.evaluation.scores import ScoreKeeper
from headrace.stages.policy.memories import AgentMemories
from headrace.stages.policy.numpy_policy import NumpyPolicy, act_together
from headrace.stages.policy.protocol import Decision, Recall
from headrace.stages.slots import Numbers
from headrace.stages.stage import StageContext
from headrace.stages.user_calls import call_user

MappingRows = list[tuple[PolicyMapping, NDArray[np.intp] | None]]
"""A tick's rows grouped by mapping: pairs (mapping, row indices), in which None stands for all rows."""
PlayerRows = list[tuple[MappedPlayer, NDArray[np.intp] | None]]
"""A tick's rows grouped by policy: pairs (policy, row indices), in which None stands for all rows."""


def players_of(parts: MappingRows, behavior_id: str) -> PlayerRows:
    """Group a tick's rows by policy, because several mappings often share a policy."""
    by_player: dict[int, tuple[MappedPlayer, list[NDArray[np.intp]]]] = {}
    for mapping, rows in parts:
        player = mapping.players[behavior_id]
        by_player.setdefault(id(player), (player, []))[1].extend([] if rows is None else [rows])
    if len(by_player) == 1:
        return [(player, None) for player, _ in by_player.values()]
    return [
        (player, rows[0] if len(rows) == 1 else np.sort(np.concatenate(rows)))  # one mapping's rows are already sorted
        for player, rows in by_player.values()
    ]


def decide_rows(
    players: PlayerRows,
    count: int,
    observations: tuple[Array, ...],
    masks: NDArray[np.bool_] | None,
    random: np.random.Generator,
    greedy: bool,
    recalls: Sequence[Recall | None],
) -> tuple[Decision, list[Recall | None]]:
    """Decide for all `count` rows, by letting each of several policies decide for its own rows.

    Policies that are multilayer perceptrons decide together; every other policy needs its own call to `act()`.

    `recalls` holds the memories of each player's rows, or None for a player without memory.

    Returns:
        The decision, and each player's updated memories.
    """
    if (together := _together(players, greedy)) is not None:
        return act_together(together, observations, masks, random, greedy), [None] * len(players)
    columns: dict[str, Array] = {}
    continuous = discrete = None
    after = []
    for (player, rows), part_recall in zip(players, recalls, strict=True):
        assert rows is not None
        part_masks = masks[rows] if masks is not None else None
        part = player.policy.act(tuple(o[rows] for o in observations), part_masks, random, greedy, part_recall)
        if continuous is None or discrete is None:
            continuous = np.empty((count, *part.actions.continuous.shape[1:]), np.float32)
            discrete = np.empty((count, *part.actions.discrete.shape[1:]), np.int32)
            columns = {name: np.empty((count, *c.shape[1:]), c.dtype) for name, c in part.columns.items()}
        continuous[rows], discrete[rows] = part.actions.continuous, part.actions.discrete
        for name, column in part.columns.items():
            columns[name][rows] = column
        after.append(part.recall)
    assert continuous is not None
    assert discrete is not None
    return Decision(ActionBatch(continuous, discrete), columns), after


def _together(players: PlayerRows, greedy: bool) -> list[tuple[NumpyPolicy, NDArray[np.intp]]] | None:
    """Return the policies and their rows if all of them can decide together, otherwise None."""
    first, parts = players[0][0].policy, []
    if not isinstance(first, NumpyPolicy):
        return None
    for player, rows in players:
        policy = player.policy
        if rows is None or not isinstance(policy, NumpyPolicy) or not first.joins(policy, greedy):
            return None
        parts.append((policy, rows))
    return parts


def stamps_of(parts: MappingRows, behavior_id: str, count: int) -> dict[str, Array]:
    """Return the policy version and the self-play stamp of each of a tick's `count` decisions, as columns of a step."""
    versions, learning = np.empty(count, np.int64), np.empty(count, np.bool_)
    generations, opponents = np.zeros(count, np.int32), np.full(count, -1, np.int32)
    for mapping, some in parts:
        rows: Any = slice(None) if some is None else some
        player = mapping.players[behavior_id]
        versions[rows] = player.version
        learning[rows] = behavior_id in mapping.learners
        if not player.plain:
            generations[rows] = mapping.generation
            opponents[rows] = mapping.opponent
    return {
        "policy_versions": versions,
        "generations": generations,
        "learning": learning,
        "opponents": opponents,
    }


# A memory is stored only after its decision's step, because a newer policy may repeat the decision before that
# (docs/decisions/032).
class PlayerMemories:
    """Keeps agents' memories between decisions, for policies with memory.

    A trainer's policies share their memories. Each brain has separate memories, which no other policy can use. The
    memory after a decision is stored once the environment has stepped with that decision.
    """

    def __init__(self) -> None:
        self.stores: dict[tuple[str, str], AgentMemories] = {}
        """The memories, keyed by behaviour id and brain; empty if no policy has a memory."""
        self.pending: list[tuple[AgentMemories, Numbers, Numbers, Recall]] = []
        """The memories that the tick's decisions produced; `keep` stores them."""

    def clear(self) -> None:
        """Forget all memories."""
        self.stores, self.pending = {}, []

    def forget(self, behavior_id: str, agent_ids: Numbers) -> None:
        """Forget agents whose episodes have ended."""
        for (owner, _), store in self.stores.items():
            if owner == behavior_id:
                store.forget(agent_ids)

    def recall(
        self,
        spec: BehaviorSpec,
        player: MappedPlayer,
        agent_ids: Numbers,
        episode_ids: Numbers,
        rows: NDArray[np.intp] | None,
    ) -> Recall:
        """Return the memories of the agents in `rows` (None means all rows), for a player with memory."""
        store = self.stores.get((spec.behavior_id, player.brain))
        if store is None:
            store = AgentMemories.for_policy(player.policy, spec.actions)
            assert store is not None, "it has a memory"
            self.stores[spec.behavior_id, player.brain] = store
        at: Any = slice(None) if rows is None else rows
        return store.recall(agent_ids[at], episode_ids[at])

    def note(
        self,
        behavior_id: str,
        player: MappedPlayer,
        agent_ids: Numbers,
        episode_ids: Numbers,
        rows: NDArray[np.intp] | None,
        recall: Recall,
    ) -> None:
        """Record the memories that a decision produced for the agents in `rows`. `keep` then stores these memories."""
        at: Any = slice(None) if rows is None else rows
        self.pending.append((self.stores[behavior_id, player.brain], agent_ids[at], episode_ids[at], recall))

    def keep(self) -> None:
        """Store the recorded memories."""
        for store, agent_ids, episode_ids, recall in self.pending:
            store.keep(agent_ids, episode_ids, recall)
        self.pending = []


_ACTING = 1
"""Part of the seed that makes decisions' random numbers differ from all others derived from the same seed."""
_DRAWING = 2
"""Part of the seed that makes the draws for brains differ from all others derived from the same seed."""
_EXITS = (SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit)
"""Exceptions that request an exit; an environment should not raise them."""


class EnvironmentStage:
    """Steps one group of environments.

    For policies with memory, the stage stores each agent's memories between the decisions of an episode; a repeated
    decision starts from the same memories.

    Args:
        make_group: builds the group. It is called again for each restart.
        mappings: the policies of each game.
        first_agent_id: added to the group's agent ids, to make them unique across actors.
        deterministic: returns True for a behaviour name if its agents take the mean action and the most likely choice.
        oracle: answers for the policies in `mappings` that are in other processes; None if all are in this process.
        audience: keeps the score of the games; None for no scores.
    """

    def __init__(
        self,
        make_group: Callable[[], EnvironmentGroup],
        mappings: PolicyMappings,
        first_agent_id: int = 0,
        deterministic: Callable[[str], bool] = no_behavior,
        oracle: DecisionClient | None = None,
        audience: ScoreKeeper | None = None,
    ) -> None:
        self.oracle = oracle
        self._audience = audience
        self._make_group = make_group
        self.mappings = mappings
        """The policies of each game."""
        self.update = mappings.update
        """Call it with a `PolicyUpdate`, to use that policy for all later decisions."""
        self._first_agent_id = first_agent_id
        self._deterministic = deterministic
        self._group: EnvironmentGroup | None = None
        self.parameters = EpisodeParameters()
        """The environment parameters of each episode."""
        self._begun = self.parameters.begun
        self._context = StageContext("environment")
        self._result = StepResult({})
        self._tracker = GameTracker(mappings)
        self._game_columns: dict[str, Columns] = {}
        self._actions: dict[str, ActionBatch] = {}
        self._memories = PlayerMemories()
        self._random_state: Mapping[str, Any] = {}
        self._specs: dict[str, BehaviorSpec] = {}
        self.specs: Mapping[str, BehaviorSpec] = {}
        """The behaviours seen so far whose steps leave the actor, keyed by behaviour id."""
        self._greedy: set[str] = set()
        """The behaviour ids whose agents take the mean action and the most likely choice."""
        self._has_games = False
        """True if the results of games matter: there are opponents, or brains that do not learn."""
        self._random = np.random.default_rng(0)
        self._tick = 0

    @property
    def num_envs(self) -> int:
        """Number of environment instances in the group."""
        return self._group.num_envs if self._group is not None else 0

    def start(self, context: StageContext) -> None:
        """Build the group."""
        self._context = context
        self._build(context.log if not context.replica else None)  # one actor's warning is enough

    def stop(self) -> Awaitable[None] | None:
        """Close the group."""
        return self._group.close() if self._group is not None else None

    async def reset(self, seed: int, spawn_key: tuple[int, ...] = ()) -> None:
        """Reset all instances; the arguments and the policies determine everything that follows.

        Args:
            seed: the seed of everything except parameters with their own seeds.
            spawn_key: makes these parameters differ between parts of the run.
        """
        # More than the seed: an environment seeded with the same number would draw the same numbers as its agents.
        self._random = np.random.default_rng((seed, _ACTING))
        self.parameters.reseed(seed, self._context.replica, *spawn_key)
        try:
            self._result = await self._call("reset", seed)
        finally:
            self._announce()  # environments that end during their first reset may have behaviours too
        self._tick += 1
        self._memories.clear()
        if self._result.statistics or self._result.behavior_statistics:
            self._report()
        self._game_columns = {}
        self.mappings.begin_games(self.num_envs, np.random.default_rng((seed, _DRAWING)))
        self._tracker.begin(self._result)
        if self._audience is not None:
            self._audience.begin(self.num_envs, self._result)

    async def restart(self, seed: int, spawn_key: tuple[int, ...] = ()) -> None:
        """Rebuild the group after it broke, and reset it."""
        old, self._group = self._group, None
        try:
            if old is not None:
                await maybe_await(old.close)
        except Exception as error:  # a broken environment may fail to close: the new one starts anyway
            self._context.log.debug("closing the broken environment failed: %s", error)
        self._build()
        await self.reset(seed, spawn_key)

    # Remote answers arrive before the decision, so trajectories are made in only one way (docs/decisions/031).
    async def consult(self) -> dict[str, int]:
        """Get the decisions that other processes make. Afterwards, call `decide`.

        Returns:
            The versions of the trainer policies that decided, keyed by behaviour id. Unchanged versions are left out.

        Raises:
            NoDecisionError: if no answer arrives.
        """
        if self.oracle is None:
            return {}
        remote, questions = [], []
        for behavior_id, steps in self._result.steps.items():
            if len(steps.agent_ids):
                _, players, seen, greedy, recalls = self._who_decides(behavior_id, steps)
                for (player, rows), recall in zip(players, recalls, strict=True):
                    if isinstance(player.policy, RemotePolicy):
                        at: Any = slice(None) if rows is None else rows
                        masks = None if steps.action_masks is None else steps.action_masks[at]
                        remote.append((player, player.policy))
                        questions.append(player.policy.question(tuple(o[at] for o in seen), masks, greedy, recall))
        others: dict[str, int] = {}
        answers = await self.oracle.ask(tuple(questions)) if questions else ()
        for (player, policy), question, answer in zip(remote, questions, answers, strict=True):
            policy.answered(answer)
            if player.version != answer.version:
                player.version = others[question.behavior_id] = answer.version
        return others

    def decide(self, again: bool = False) -> list[StepBatch]:
        """Return the policies' actions for the last step's rows, as one StepBatch per behaviour id.

        Args:
            again: whether to repeat the decision on the same step, by newer policies and with the same random numbers.
        """
        if again:
            self._random.bit_generator.state = self._random_state
        else:
            self._random_state = self._random.bit_generator.state
        self._actions = {}
        self._memories.pending.clear()  # those of a decision that is repeated
        decided = []
        for behavior_id, steps in self._result.steps.items():
            if len(steps.agent_ids):
                step = self._decide_for(behavior_id, steps, self._game_columns.get(behavior_id, {}))
                if behavior_id in self.specs:
                    decided.append(step)
        return decided

    async def advance(self) -> StepResult:
        """Step the group with the actions last decided, and return the result of this tick."""
        assert self._group is not None, "the stage was not started"
        if self._memories.pending:
            self._memories.keep()
        self._begun = self.parameters.begun
        self._result = result = await self._call("step", self._actions)
        self._tick += 1
        if len(self._group.behavior_specs) > len(self._specs):
            self._announce()
        for env_ids in (result.lost, result.closed):  # memories are unaffected, because they belong to episodes
            if env_ids is not None:
                self._tracker.forget(env_ids)
                self.mappings.restart_games(env_ids)
        if self._has_games:
            self._game_columns = self._tracker.finish(result, type(self._group).__name__)
        if self._audience is not None:
            self._audience.add(result)
        if result.statistics or result.behavior_statistics:
            self._report()
        return result

    def progress(self) -> int | None:
        """Return the number of ticks so far; None if the group itself reports delays."""
        return None if isinstance(self._group, GroupWithDeadlines) and self._group.has_deadlines else self._tick

    def request_stop(self) -> None:
        """Make a hanging tick end soon."""
        if isinstance(self._group, StoppableGroup):
            self._group.request_stop()

    def _report(self) -> None:
        """Report the environment's own statistics. Each behaviour also reports those that belong to no behaviour."""
        of_behaviors, common = self._result.behavior_statistics, self._result.statistics
        for behavior in dict.fromkeys(map(behavior_name, self.specs)):
            for name, value in (*common.items(), *of_behaviors.get(behavior, {}).items()):
                if isinstance(value, StatisticValues):
                    self._context.statistics.extend(behavior, name, value.values, value.how)
                else:
                    self._context.statistics.add(behavior, name, value)

    def _build(self, log: Logger | None = None) -> None:
        self._group = self._make_group()
        connect_parameters(self._group, self.parameters, log)

    async def _call(self, what: str, argument: Any) -> StepResult:
        """Call the group's `reset` with a seed, or its `step` with actions."""
        assert self._group is not None, "the stage was not started"
        try:
            result = call_user(getattr(self._group, what), argument)
            if inspect.isawaitable(result):
                result = await result
        except (StageError, EnvironmentEnded):
            raise
        except _EXITS as error:
            if type(error) not in _EXITS or not is_failure(error):  # such as the error that ends a hanging step
                raise
            raise StageError(f"the environment's {what}() requested an exit: {describe_error(error)}") from error
        except BaseException as error:  # includes errors outside Exception, such as a panic in Rust
            raise BrokenEnvironmentError(f"the environment's {what}() failed: {describe_error(error)}") from error
        return result  # type: ignore[no-any-return]

    def _announce(self) -> None:
        assert self._group is not None, "the stage was not started"
        mappings = self.mappings
        for behavior_id, spec in self._group.behavior_specs.items():
            if behavior_id not in self._specs:  # a restarted group announces the same behaviours
                self._specs[behavior_id] = spec
                mappings.add_behavior(spec)
                if self._deterministic(spec.name):
                    self._greedy.add(behavior_id)
        self.specs = mappings.emitted(self._specs)
        self._has_games = mappings.self_play or mappings.mixes_brains or mappings.rates_brains

    def _decide_for(self, behavior_id: str, steps: AgentSteps, games: Columns) -> StepBatch:
        parts, players, seen, greedy, recalls = self._who_decides(behavior_id, steps)
        agent_ids = steps.agent_ids + self._first_agent_id
        ids, episodes = agent_ids[steps.ended :], steps.episode_ids[steps.ended :]
        if len(players) == 1:
            policy = players[0][0].policy
            decision = policy.act(seen, steps.action_masks, self._random, greedy, recalls[0])
            after = [decision.recall]
        else:
            decision, after = decide_rows(players, len(ids), seen, steps.action_masks, self._random, greedy, recalls)
        for (player, rows), recall in zip(players, after, strict=True):
            if recall is not None:
                self._memories.note(behavior_id, player, ids, episodes, rows, recall)
        self._actions[behavior_id] = decision.actions
        masks = {} if steps.action_masks is None else {"action_masks": steps.action_masks}
        group_ids = group_rewards = None
        if self._specs[behavior_id].grouped or steps.group_ids is not None or steps.group_rewards is not None:
            group_ids, group_rewards = self._groups_of(behavior_id, steps)
        generations = steps.parameters  # [ended] of the environment parameters at each ended episode's start
        if not self.parameters.values:
            generations = None
        elif generations is None:
            generations = self._begun[steps.env_ids[: steps.ended]]
        # Endings come first, so decisions are one slice, and each observation is stored once (docs/decisions/004).
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
            decisions={**decision.columns, **masks},
            games=games,
            tick=self._tick,
            group_ids=group_ids,
            group_rewards=group_rewards,
            parameters=generations,
            env_frames=steps.env_frames,
            undiscounted=steps.undiscounted,
            **stamps_of(parts, behavior_id, len(ids)),
        )

    def _who_decides(
        self, behavior_id: str, steps: AgentSteps
    ) -> tuple[MappingRows, PlayerRows, tuple[Array, ...], bool, list[Recall | None]]:
        """Return what a decision needs.

        Returns:
            The mappings and the policies of the rows to decide, these rows' observations, whether the agents take the
            most likely actions, and the memories of each policy's rows.
        """
        agent_ids, deciding = steps.agent_ids + self._first_agent_id, slice(steps.ended, None)
        alone: MappingRows = [(self.mappings.current, None)]
        parts = self.mappings.rows_by_mapping(steps.env_ids[deciding]) if len(agent_ids) > steps.ended else alone
        players: PlayerRows = [(parts[0][0].players[behavior_id], None)]
        if len(parts) > 1:
            players = players_of(parts, behavior_id)
        if self._memories.stores:
            self._memories.forget(behavior_id, agent_ids[: steps.ended])
        spec, ids, episodes = self._specs[behavior_id], agent_ids[deciding], steps.episode_ids[deciding]
        recalls = [
            self._memories.recall(spec, player, ids, episodes, rows) if player.policy.memory_size else None
            for player, rows in players
        ]
        seen = tuple([o[deciding] for o in steps.observations])
        return parts, players, seen, behavior_id in self._greedy, recalls

    def _groups_of(self, behavior_id: str, steps: AgentSteps) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return group ids that are unique across actors, and group rewards, for a behaviour with groups."""
        if not self._specs[behavior_id].grouped:
            raise StageError(
                f"{behavior_id}: the environment returns group_ids or group_rewards, but its BehaviorSpec is not "
                "grouped; make the spec with grouped=True"
            )
        count = len(steps.agent_ids)
        ids = np.zeros(count, np.int64)
        if steps.group_ids is not None:
            ids = np.where(steps.group_ids, steps.group_ids + self._first_agent_id, 0)
        rewards = steps.group_rewards
        return ids, np.zeros(count, np.float32) if rewards is None else rewards

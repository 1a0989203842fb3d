"""Makes one tick's decisions for one behaviour id: each policy decides for its games' rows, and each row is stamped.

`PlayerMemories` keeps agents' memories between decisions, separately for each behaviour id and player.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch, Array
from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.policy_mapping import MappedPlayer, PolicyMapping
from headrace.stages.policy.memories import AgentMemories
from headrace.stages.policy.numpy_policy import NumpyPolicy, act_together
from headrace.stages.policy.protocol import Decision, Recall
from headrace.stages.slots import Numbers

MappingRows = list[tuple[PolicyMapping, NDArray[np.intp] | None]]
"""A tick's rows grouped by mapping: pairs (mapping, row indices), in which None stands for all rows."""
PlayerRows = list[tuple[MappedPlayer, NDArray[np.intp] | None]]
"""A tick's rows grouped by policy: pairs (policy, row indices), in which None stands for all rows."""


def players_of(parts: MappingRows, behavior_id: str) -> PlayerRows:
    """Group a tick's rows by policy, because several mappings often share a policy."""
    found: dict[int, tuple[MappedPlayer, list[NDArray[np.intp]]]] = {}
    for mapping, rows in parts:
        player = mapping.players[behavior_id]
        found.setdefault(id(player), (player, []))[1].extend([] if rows is None else [rows])
    if len(found) == 1:
        return [(player, None) for player, _ in found.values()]
    return [
        (player, rows[0] if len(rows) == 1 else np.sort(np.concatenate(rows)))  # one mapping's rows are already sorted
        for player, rows in found.values()
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
    """Decide for all `count` rows, by letting each policy decide for its own rows.

    Policies that are multilayer perceptrons decide together; every other policy needs its own call to `act()`.

    `recalls` holds the memories of each player's rows, or None for a player without memory.

    Returns:
        The decision, and each player's updated memories.
    """
    if len(players) == 1:
        decision = _act(players[0][0], observations, masks, random, greedy, recalls[0])
        return decision, [decision.recall]
    if (together := _together(players, greedy)) is not None:
        decision = act_together(together, observations, masks, random, greedy)
        return _with_masks(decision, masks), [None] * len(players)
    columns: dict[str, Array] = {}
    continuous = discrete = None
    after = []
    for (player, rows), part_recall in zip(players, recalls, strict=True):
        assert rows is not None
        part_masks = masks[rows] if masks is not None else None
        part = _act(player, tuple(o[rows] for o in observations), part_masks, random, greedy, part_recall)
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


def _act(
    player: MappedPlayer,
    observations: tuple[Array, ...],
    masks: NDArray[np.bool_] | None,
    random: np.random.Generator,
    greedy: bool,
    recall: Recall | None,
) -> Decision:
    return _with_masks(player.policy.act(observations, masks, random, greedy, recall), masks)


def _with_masks(decision: Decision, masks: NDArray[np.bool_] | None) -> Decision:
    if masks is not None:
        return Decision(decision.actions, {**decision.columns, "action_masks": masks}, decision.recall)
    return decision


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


class DecisionStamp:
    """The policy version and self-play stamp of each decision in a tick. Default values replace missing stamps."""

    __slots__ = ("generations", "learning", "opponents", "versions")

    def __init__(self, count: int, parts: MappingRows, behavior_id: str) -> None:
        self.versions = np.empty(count, np.int64)
        self.generations = np.zeros(count, np.int32)
        self.learning = np.empty(count, np.bool_)
        self.opponents = np.full(count, -1, np.int32)
        for mapping, some in parts:
            rows: Any = slice(None) if some is None else some
            player = mapping.players[behavior_id]
            self.versions[rows] = player.version
            self.learning[rows] = mapping.learns(behavior_id)
            if not player.plain:
                self.generations[rows] = mapping.generation
                self.opponents[rows] = mapping.opponent


# A memory is stored only after its decision's step, because a newer policy may repeat the decision before that
# (docs/decisions/032).
class PlayerMemories:
    """Keeps agents' memories between decisions, for policies with memory.

    A trainer's policies share their memories. Each brain has separate memories, which no other policy can use. The
    memory after a decision is stored once the environment has stepped with that decision.
    """

    def __init__(self) -> None:
        self._stores: dict[tuple[str, str], AgentMemories] = {}
        self._pending: list[tuple[AgentMemories, Numbers, Numbers, Recall]] = []

    def clear(self) -> None:
        """Forget all memories."""
        self._stores, self._pending = {}, []

    def begin_tick(self) -> None:
        """Drop the memories recorded for decisions that will be repeated."""
        self._pending = []

    def of(self, behavior_id: str, brain: str = "") -> AgentMemories | None:
        """Return the memories of a behaviour id's trainer policies, or of `brain` if given; None if none exist."""
        return self._stores.get((behavior_id, brain))

    def forget(self, behavior_id: str, agent_ids: Numbers) -> None:
        """Forget agents whose episodes have ended."""
        for (owner, _), store in self._stores.items():
            if owner == behavior_id:
                store.forget(agent_ids)

    def recall(
        self,
        spec: BehaviorSpec,
        player: MappedPlayer,
        agent_ids: Numbers,
        episode_ids: Numbers,
        rows: NDArray[np.intp] | None,
    ) -> Recall | None:
        """Return the memories of the agents in `rows` (None means all rows), or None if the player has no memory."""
        if not player.policy.memory_size:
            return None
        store = self.of(spec.behavior_id, player.brain)
        if store is None:
            store = AgentMemories.for_policy(player.policy, spec.actions)
            assert store is not None, "it has a memory"
            self._stores[spec.behavior_id, player.brain] = store
        at: Any = slice(None) if rows is None else rows
        return store.recall(agent_ids[at], episode_ids[at])

    def note(
        self,
        behavior_id: str,
        player: MappedPlayer,
        agent_ids: Numbers,
        episode_ids: Numbers,
        rows: NDArray[np.intp] | None,
        recall: Recall | None,
    ) -> None:
        """Record the memories that a decision produced for the agents in `rows`. `keep` then stores these memories."""
        store = self.of(behavior_id, player.brain)
        at: Any = slice(None) if rows is None else rows
        if store is not None and recall is not None:
            self._pending.append((store, agent_ids[at], episode_ids[at], recall))

    def keep(self) -> None:
        """Store the recorded memories."""
        for store, agent_ids, episode_ids, recall in self._pending:
            store.keep(agent_ids, episode_ids, recall)
        self._pending = []

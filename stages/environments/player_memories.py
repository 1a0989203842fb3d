"""The memories of an actor's agents: by behaviour id, and by who decides."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.policy_mapping import MappedPlayer
from headrace.stages.policy.memories import AgentMemories
from headrace.stages.policy.protocol import Recall
from headrace.stages.slots import Numbers


class PlayerMemories:
    """Keeps the memories of agents for policies that have such, from decision to decision.

    The policies of a trainer share theirs; a brain's are its own, as they mean nothing to others. What agents remember
    after a decision is kept once the environment is stepped with it.
    """

    def __init__(self) -> None:
        self._stores: dict[tuple[str, str], AgentMemories] = {}
        self._pending: list[tuple[AgentMemories, Numbers, Numbers, Recall]] = []

    def clear(self) -> None:
        """Forget everything."""
        self._stores, self._pending = {}, []

    def begin_tick(self) -> None:
        """Drop what was noted of decisions that are made again."""
        self._pending = []

    def of(self, behavior_id: str, brain: str = "") -> AgentMemories | None:
        """Return the memories of a behaviour id for its trainer's policies, or for a brain."""
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
        """Return the memories of agents in some rows, all for None; None for a player without memory."""
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
        """Note what agents in some rows remember after a decision."""
        store = self.of(behavior_id, player.brain)
        at: Any = slice(None) if rows is None else rows
        if store is not None and recall is not None:
            self._pending.append((store, agent_ids[at], episode_ids[at], recall))

    def keep(self) -> None:
        """Keep what was noted."""
        for store, agent_ids, episode_ids, recall in self._pending:
            store.keep(agent_ids, episode_ids, recall)
        self._pending = []

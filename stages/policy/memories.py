"""What agents remember between their decisions, for policies that have a memory.

The policy itself remembers nothing: it is given what its agents remember and says what they will. So policies of one
behaviour id may take turns (newer ones, self-play snapshots) while the agents' memories stay with the agents.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from queues.specs import ActionSpec
from stages.policy.actions import first_action_features
from stages.policy.protocol import ActingPolicy, Recall
from stages.slots import NOBODY, Numbers, Slots, enlarged

Floats = NDArray[np.float32]

PATIENCE = 10_000
"""Ticks of a behaviour id after which an agent that did not decide in any of them may be forgotten."""


class AgentMemories:
    """The memories of one behaviour id's agents, in columns.

    An agent that is not known, or is known from another episode, remembers nothing. An agent is forgotten by `forget`
    when its episode ends and by `clear` when all environments start anew. One that vanishes without an ending keeps
    its place, as it may come back; but before the store grows, it forgets those that have not decided for `patience`
    ticks. So its size is bounded by the number of agents that decide within so many ticks, whatever environments do;
    and an agent that comes back later than that starts with an empty memory, as its `memories` column then says.

    Args:
        memory_size: m.
        first_actions: [P] what stands for the previous action in an episode's first decision.
        patience: ticks, see above.
    """

    def __init__(self, memory_size: int, first_actions: Floats, patience: int = PATIENCE) -> None:
        self._patience = patience
        self._slots = Slots(1)
        total = self._slots.total
        # Slot NOBODY holds what agents remember that are not known.
        self._memories = np.zeros((total, memory_size), np.float32)
        self._previous_actions = np.tile(first_actions, (total, 1))
        self._episode_ids = np.zeros(total, np.int64)
        self._last_seen = np.zeros(total, np.int64)
        self._tick = 0

    @classmethod
    def for_policy(cls, policy: ActingPolicy, actions: ActionSpec) -> AgentMemories | None:
        """An empty store for a policy of that spec; None if the policy has no memory."""
        return cls(policy.memory_size, first_action_features(actions)) if policy.memory_size else None

    def __len__(self) -> int:
        """Number of agents that are known."""
        return len(self._slots)

    def recall(self, agent_ids: Numbers, episode_ids: Numbers) -> Recall:
        """What agents [d] remember in their episodes [d]; new arrays."""
        slots = self._slots.find(agent_ids)
        slots[self._episode_ids[slots] != episode_ids] = NOBODY
        return Recall(self._memories.take(slots, 0), self._previous_actions.take(slots, 0))

    def keep(self, agent_ids: Numbers, episode_ids: Numbers, recall: Recall) -> None:
        """Remember what agents [d] will know at their next decision in these episodes [d]; copied."""
        self._tick += 1
        slots = self._slots.find(agent_ids)
        new = (slots == NOBODY).nonzero()[0]
        if len(new):
            if len(self._slots) + len(new) >= self._slots.total:
                self._forget_vanished(agent_ids)
            slots[new] = self._slots.add(agent_ids[new])
            self._enlarge()
        self._memories[slots] = recall.memories
        self._previous_actions[slots] = recall.previous_actions
        self._episode_ids[slots] = episode_ids
        self._last_seen[slots] = self._tick

    def forget(self, agent_ids: Numbers) -> None:
        """These agents' episodes have ended. Agents that are not known may be among them."""
        slots = self._slots.find(np.unique(agent_ids))
        known = slots[slots != NOBODY]
        if len(known):
            self._slots.remove(known)

    def clear(self) -> None:
        """Forget all agents."""
        self._slots.remove(self._slots.used())

    def _forget_vanished(self, deciding: Numbers) -> None:
        used = self._slots.used()
        vanished = used[self._tick - self._last_seen[used] > self._patience]
        vanished = vanished[~np.isin(self._slots.ids[vanished], deciding)]
        if len(vanished):
            self._slots.remove(vanished)

    def _enlarge(self) -> None:
        total, present = self._slots.total, len(self._memories)
        if total > present:
            self._memories = enlarged(self._memories, total)
            self._previous_actions = enlarged(self._previous_actions, total)
            self._episode_ids = enlarged(self._episode_ids, total)
            self._last_seen = enlarged(self._last_seen, total)

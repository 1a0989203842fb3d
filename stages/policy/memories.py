"""Agents' memories between decisions, for policies that have a memory.

A policy itself is stateless: it receives its agents' memories and returns the updated ones. Different policies for the
same behaviour id (newer versions, self-play snapshots) may therefore alternate while the memories stay with the agents.
"""

from __future__ import annotations

import numpy as np

from headrace.queues.messages import Floats
from headrace.queues.specs import ActionSpec
from headrace.stages.policy.protocol import ActingPolicy, Recall
from headrace.stages.policy.sampling import first_action_features
from headrace.stages.slots import NOBODY, Numbers, Slots, enlarged

PATIENCE = 10_000
"""An agent's memory may be dropped after this many of its behaviour id's ticks without a decision."""


def nothing_recalled(policy: ActingPolicy, actions: ActionSpec, agents: int) -> Recall | None:
    """Return the memories that agents have before their first decision; None if the policy has no memory."""
    if not policy.memory_size:
        return None
    return Recall(
        np.zeros((agents, policy.memory_size), np.float32), np.tile(first_action_features(actions), (agents, 1))
    )


class AgentMemories:
    """The memories of one behaviour id's agents, stored as columns.

    An agent that is unknown, or known from a different episode, has an empty memory. `forget` drops an agent when its
    episode ends; `clear` drops all agents when all environments are reset. An agent that vanishes before its episode
    ends may return, so it keeps its slot. Before the store grows, however, it drops agents that have not decided for
    `patience` ticks. The number of agents that decide within that time therefore bounds the store's size, regardless of
    what environments do. An agent that returns after being dropped starts with an empty memory, as its `memories`
    column shows.

    Args:
        memory_size: m, the size of an agent's memory.
        first_actions: [P] the previous action's features in an episode's first decision.
        patience: number of ticks without a decision after which an agent may be dropped.
    """

    def __init__(self, memory_size: int, first_actions: Floats, patience: int = PATIENCE) -> None:
        self._patience = patience
        self._slots = Slots(1)
        total = self._slots.total
        # Slot `NOBODY` holds the memory of all unknown agents.
        self._memories = np.zeros((total, memory_size), np.float32)
        self._previous_actions = np.tile(first_actions, (total, 1))
        self._episode_ids = np.zeros(total, np.int64)
        self._last_seen = np.zeros(total, np.int64)
        self._tick = 0

    @classmethod
    def for_policy(cls, policy: ActingPolicy, actions: ActionSpec) -> AgentMemories | None:
        """Return an empty store for a policy with these actions, or None if the policy has no memory."""
        return cls(policy.memory_size, first_action_features(actions)) if policy.memory_size else None

    def __len__(self) -> int:
        """Return the number of known agents."""
        return len(self._slots)

    def recall(self, agent_ids: Numbers, episode_ids: Numbers) -> Recall:
        """Return the memories of agents [d] in these episodes [d], as new arrays."""
        slots = self._slots.find(agent_ids)
        slots[self._episode_ids[slots] != episode_ids] = NOBODY
        return Recall(self._memories.take(slots, 0), self._previous_actions.take(slots, 0))

    def keep(self, agent_ids: Numbers, episode_ids: Numbers, recall: Recall) -> None:
        """Store copies of the memories of agents [d] for their next decision in these episodes [d]."""
        self._tick += 1
        slots = self._slots.find(agent_ids)
        new = (slots == NOBODY).nonzero()[0]
        if len(new):
            if len(self._slots) + len(new) >= self._slots.total:
                self._forget_vanished(agent_ids)
            slots[new] = self._slots.add(agent_ids[new])
            total = self._slots.total
            if total > len(self._memories):
                self._memories = enlarged(self._memories, total)
                self._previous_actions = enlarged(self._previous_actions, total)
                self._episode_ids = enlarged(self._episode_ids, total)
                self._last_seen = enlarged(self._last_seen, total)
        self._memories[slots] = recall.memories
        self._previous_actions[slots] = recall.previous_actions
        self._episode_ids[slots] = episode_ids
        self._last_seen[slots] = self._tick

    def forget(self, agent_ids: Numbers) -> None:
        """Drop the memories of agents whose episodes have ended; unknown agents are ignored."""
        slots = self._slots.find(np.unique(agent_ids))
        occupied = slots[slots != NOBODY]
        if len(occupied):
            self._slots.remove(occupied)

    def clear(self) -> None:
        """Drop the memories of all agents."""
        self._slots.remove(self._slots.used())

    def _forget_vanished(self, deciding: Numbers) -> None:
        used = self._slots.used()
        vanished = used[self._tick - self._last_seen[used] > self._patience]
        vanished = vanished[~np.isin(self._slots.ids[vanished], deciding)]
        if len(vanished):
            self._slots.remove(vanished)

"""A trained policy as a player in a game that is stepped without the pipeline."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch, Array
from headrace.queues.specs import ActionSpec
from headrace.stages.policy.memories import AgentMemories
from headrace.stages.policy.protocol import ActingPolicy


class PolicyPlayer:
    """Plays with a policy and its own random generator.

    A recurrent policy's memories are stored per row: each row is assumed to be the same agent until `forget` is called.

    Args:
        policy: the policy.
        actions: the action spec of the policy's behaviour.
        seed: the seed of the random numbers.
        deterministic: whether to take the most likely actions instead of samples.
    """

    def __init__(self, policy: ActingPolicy, actions: ActionSpec, seed: int, deterministic: bool = False) -> None:
        self._policy = policy
        self._deterministic = deterministic
        self._random = np.random.default_rng(seed)
        self._memories = AgentMemories.for_policy(policy, actions)

    def __call__(self, observations: tuple[Array, ...], masks: NDArray[np.bool_] | None = None) -> ActionBatch:
        """Decide for each row."""
        rows = np.arange(len(observations[0]))
        recall = None if self._memories is None else self._memories.recall(rows, np.zeros_like(rows))
        decision = self._policy.act(observations, masks, self._random, self._deterministic, recall)
        if self._memories is not None and decision.recall is not None:
            self._memories.keep(rows, np.zeros_like(rows), decision.recall)
        return decision.actions

    def forget(self, rows: NDArray[np.int64]) -> None:
        """Drop the memories of rows whose episodes have ended."""
        if self._memories is not None:
            self._memories.forget(rows)

"""Players of an evaluation: each decides for the agents of one behaviour id, from the rows that ask for a decision."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np

from headrace.queues.messages import ActionBatch, PolicyUpdate
from headrace.queues.specs import BehaviorSpec
from headrace.stages.brains.uniform import UniformBrain
from headrace.stages.environments.protocol import AgentSteps
from headrace.stages.policy.memories import AgentMemories
from headrace.stages.policy.protocol import ActingPolicy

SEED = 20_261
"""All policies play the same episodes, against the same chance, so that their scores can be compared."""

Player = Callable[[AgentSteps], ActionBatch]
"""The actions of the d agents that ask for a decision."""


class GreedyPlayer:
    """Takes the most likely actions of a policy or a brain, and keeps its agents' memories.

    Args:
        policy: decides; with its weights.
        spec: the behaviour id.
        seed: of its random numbers.
    """

    deterministic = True

    def __init__(self, policy: ActingPolicy, spec: BehaviorSpec, seed: Sequence[int] = (SEED,)) -> None:
        self._policy = policy
        self._memories = AgentMemories.for_policy(policy, spec.actions)
        self._random = np.random.default_rng((*seed, zlib.crc32(spec.behavior_id.encode())))

    def load(self, update: PolicyUpdate) -> None:
        """Act by these weights from the next decision on; memories are kept."""
        self._policy.load(update)

    def __call__(self, steps: AgentSteps) -> ActionBatch:
        """Decide for each agent that asks for it."""
        observations = tuple(o[steps.ended :] for o in steps.observations)
        agent_ids, episode_ids = steps.agent_ids[steps.ended :], steps.episode_ids[steps.ended :]
        recall = None
        if self._memories is not None:
            self._memories.forget(steps.agent_ids[: steps.ended])
            recall = self._memories.recall(agent_ids, episode_ids)
        masks, greedy = steps.action_masks, self.deterministic
        decision = self._policy.act(observations, masks, self._random, deterministic=greedy, recall=recall)
        if self._memories is not None and decision.recall is not None:
            self._memories.keep(agent_ids, episode_ids, decision.recall)
        return decision.actions


class DrawingPlayer(GreedyPlayer):
    """Draws its actions, as in training."""

    deterministic = False


def uniform_player(spec: BehaviorSpec) -> Player:
    """A player that acts at random."""
    return GreedyPlayer(UniformBrain(spec.actions), spec)

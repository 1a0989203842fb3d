"""Players of an evaluation: each decides for the agents of one behaviour id, from the rows that ask for a decision."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from queues.messages import ActionBatch, PolicyUpdate
from queues.specs import BehaviorSpec
from stages.environment.protocol import AgentSteps
from stages.error_text import describe_error
from stages.errors import StageError
from stages.policy.memories import AgentMemories
from stages.policy.protocol import ActingPolicy

SEED = 20_261
"""All policies play the same episodes, against the same chance, so that their scores can be compared."""

Player = Callable[[AgentSteps], ActionBatch]
"""The actions of the d agents that ask for a decision."""


class GreedyPlayer:
    """Takes a policy's most likely actions, and keeps its agents' memories.

    Args:
        policy: an acting policy of the behaviour.
        update: its weights.
        spec: the behaviour.
    """

    def __init__(self, policy: ActingPolicy, update: PolicyUpdate, spec: BehaviorSpec) -> None:
        policy.load(update)
        self._policy = policy
        self._memories = AgentMemories.for_policy(policy, spec.actions)
        self._random = np.random.default_rng(SEED)

    def __call__(self, steps: AgentSteps) -> ActionBatch:
        """Decide for each agent that asks for it."""
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


class UniformPlayer:
    """Draws each continuous action from [-1, 1] and each choice from those that are allowed, all equally likely."""

    def __init__(self, spec: BehaviorSpec) -> None:
        self._actions = spec.actions
        self._random = np.random.default_rng((SEED, zlib.crc32(spec.behavior_id.encode())))

    def __call__(self, steps: AgentSteps) -> ActionBatch:
        """Decide for each agent that asks for it."""
        count, actions = len(steps.agent_ids) - steps.ended, self._actions
        continuous = self._random.uniform(-1, 1, (count, actions.continuous_size)).astype(np.float32)
        scores = self._random.random((count, actions.mask_size))
        if steps.action_masks is not None:
            scores[~steps.action_masks] = -1.0  # never the highest: of each branch something is allowed
        branches = np.split(scores, np.cumsum(actions.discrete_branches)[:-1], axis=1)
        discrete = np.stack([branch.argmax(axis=1) for branch in branches], axis=1) if actions.mask_size else scores
        return ActionBatch(continuous, discrete.astype(np.int32))


class ScriptPlayer:
    """Asks a player of the user's, or a game's scripted one.

    Args:
        script: called with the observations, one array [d, *shape] per observation spec, and with the action masks
            [d, sum of branches] where the behaviour has such; returns an `ActionBatch`.
        spec: the behaviour. Of a learned action repeat the script needs to know nothing: it is asked at each
            environment step, and its masks have no choices for it.
        name: of the script, for messages.
    """

    def __init__(self, script: Callable[..., Any], spec: BehaviorSpec, name: str) -> None:
        self._script = script
        self._spec = spec
        self._name = name

    def __call__(self, steps: AgentSteps) -> ActionBatch:
        """Decide for each agent that asks for it.

        Raises:
            StageError: if the script raises, or returns anything but actions for these agents.
        """
        count, actions = len(steps.agent_ids) - steps.ended, self._spec.actions
        repeats = self._spec.action_repeat == "learned"
        branches = len(actions.discrete_branches)
        if not count:
            return ActionBatch(np.zeros((0, actions.continuous_size), np.float32), np.zeros((0, branches), np.int32))
        shapes = (count, actions.continuous_size), (count, branches - repeats)
        observations = tuple(o[steps.ended :] for o in steps.observations)
        width = actions.mask_size - (actions.discrete_branches[-1] if repeats else 0)
        masks = () if steps.action_masks is None else (steps.action_masks[:, :width],)
        try:
            made = self._script(observations, *masks)
        except Exception as error:
            raise StageError(f"{self._name} raised {describe_error(error)}") from error
        if not isinstance(made, ActionBatch) or (made.continuous.shape, made.discrete.shape) != shapes:
            given = made
            if isinstance(made, ActionBatch):
                given = f"one of continuous {list(made.continuous.shape)} and discrete {list(made.discrete.shape)}"
            raise StageError(
                f"{self._name} returned {given!s} for {count} agents of {self._spec.behavior_id}; expected an "
                f"ActionBatch of continuous {list(shapes[0])} and discrete {list(shapes[1])}"
            )
        return ActionBatch(made.continuous, np.pad(made.discrete, ((0, 0), (0, 1)))) if repeats else made

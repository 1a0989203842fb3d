"""The brain that acts at random."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch, Array
from headrace.queues.specs import ActionSpec
from headrace.stages.brains.protocol import BrainRequest, Memoryless
from headrace.stages.policy.protocol import Decision, Recall


class UniformBrain(Memoryless):
    """Draws each continuous action from [-1, 1] and each choice from those that are allowed, all equally likely."""

    def __init__(self, actions: ActionSpec) -> None:
        self._actions = actions

    def act(
        self,
        observations: tuple[Array, ...],
        masks: NDArray[np.bool_] | None,
        random: np.random.Generator,
        deterministic: bool = False,
        recall: Recall | None = None,
    ) -> Decision:
        """Draw an action for each row."""
        return Decision(uniform_actions(self._actions, len(observations[0]), masks, random), {})


def uniform_actions(
    actions: ActionSpec, count: int, masks: NDArray[np.bool_] | None, random: np.random.Generator
) -> ActionBatch:
    """Draw actions for so many agents."""
    continuous = random.uniform(-1, 1, (count, actions.continuous_size)).astype(np.float32)
    scores = random.random((count, actions.mask_size))
    if masks is not None:
        scores[~masks] = -1.0  # never the highest: of each branch something is allowed
    branches = np.split(scores, np.cumsum(actions.discrete_branches)[:-1], axis=1)
    discrete = np.stack([branch.argmax(axis=1) for branch in branches], axis=1) if actions.mask_size else scores
    return ActionBatch(continuous, discrete.astype(np.int32))


def make_uniform(request: BrainRequest) -> UniformBrain | None:
    """Make the brain."""
    return None if request.spec is None else UniformBrain(request.spec.actions)

"""Acting in a learner's place: decisions of a brain, with all the columns that those of the learner have."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.queues.columns import decision_columns
from headrace.queues.messages import Array, PolicyUpdate
from headrace.stages.policy.design import PolicyDesign
from headrace.stages.policy.protocol import ActingPolicy, Decision, Recall
from headrace.stages.policy.sampling import policy_actions


class StandIn:
    """An `ActingPolicy` that decides by a brain, for agents of a behaviour whose other policies are of some design.

    Columns that only a learner's own policy knows (log-probabilities, memories) are zeros: nothing is learned from
    them, but a stage, a recorder or a student may read the actions.

    Args:
        brain: decides.
        design: of the behaviour's policies.
    """

    def __init__(self, brain: ActingPolicy, design: PolicyDesign) -> None:
        self._brain = brain
        self._actions = design.spec.actions
        self._squashed = design.squashed
        self._columns = decision_columns(design.spec, design.added_columns)

    @property
    def memory_size(self) -> int:
        """M of the brain."""
        return self._brain.memory_size

    @property
    def previous_action_size(self) -> int:
        """P of the brain."""
        return self._brain.previous_action_size

    def load(self, update: PolicyUpdate) -> None:
        """Load nothing: a brain does not change."""

    def act(
        self,
        observations: tuple[Array, ...],
        masks: NDArray[np.bool_] | None,
        random: np.random.Generator,
        deterministic: bool = False,
        recall: Recall | None = None,
    ) -> Decision:
        """See `ActingPolicy.act`."""
        made = self._brain.act(observations, masks, random, deterministic, recall)
        given, count = made.actions, len(observations[0])
        known: dict[str, Array] = {"discrete_actions": np.asarray(given.discrete, np.int32)}
        if self._actions.continuous_size:
            continuous = np.asarray(given.continuous, np.float32)
            known["continuous_actions"] = policy_actions(self._actions, continuous, self._squashed)
        if self._actions.masked:
            known["action_masks"] = np.ones((count, self._actions.mask_size), np.bool_) if masks is None else masks
        columns = {
            each.name: known[each.name] if each.name in known else np.zeros((count, *each.shape), each.dtype)
            for each in self._columns
        }
        return Decision(given, columns, made.recall)

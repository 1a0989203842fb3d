"""Transitions for reward signals and imitation: rows of a rollout, of a replay memory, of demonstrations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headrace.queues.messages import Array
from headrace.queues.specs import ActionSpec
from headrace.stages.policy.network.inputs import Inputs


@dataclass(frozen=True, slots=True)
class Transitions:
    """B steps, in no order. Observations are not normalised: a signal that needs it keeps a normaliser of its own."""

    inputs: Inputs
    """Observations; without memory."""
    next_inputs: Inputs
    """Observations after the step. Where the episode terminated, as `Intake` returns them: the observation itself, or
    if it was not sound, the one before; zeros in the vectors if none of the trainer's signals goes on there."""
    continuous: Tensor
    """[B, C] continuous actions in the environment's form: in [-1, 1] where bounded."""
    choices: Tensor
    """[B, branches] int64 choices of the discrete branches."""
    rewards: Tensor
    """[B] the environment's rewards."""
    terminated: Tensor
    """[B] 1 where the step ended the episode by the task's own rules, else 0."""

    def rows(self, which: Tensor | slice) -> Transitions:
        """Some of the transitions."""
        return replace(
            self,
            inputs=self.inputs.rows(which),
            next_inputs=self.next_inputs.rows(which),
            continuous=self.continuous[which],
            choices=self.choices[which],
            rewards=self.rewards[which],
            terminated=self.terminated[which],
        )


def drawn_actions(
    actions: ActionSpec, columns: Mapping[str, Array], n: int, prefix: str = ""
) -> tuple[NDArray[np.float32], Array]:
    """Continuous actions [n, C] as the policy drew them, and choices [n, branches]; width 0 without any.

    Args:
        actions: the actions' spec.
        columns: `continuous_actions` and `discrete_actions`, as far as there are such actions.
        n: number of rows.
        prefix: before the columns' names, such as `previous_`.
    """
    return (
        columns[f"{prefix}continuous_actions"] if actions.continuous_size else np.empty((n, 0), np.float32),
        columns[f"{prefix}discrete_actions"] if actions.discrete_branches else np.empty((n, 0), np.int32),
    )

"""The acting policy: the interface between the environment stage and the code that computes actions.

`numpy_policy` (NumPy) and `network.torch_policy` (torch) implement this interface, and so can any other class that
loads the same flat weights. Acting works on columns: one call per tick, group and policy, never one per agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch, Array, PolicyUpdate


@dataclass(frozen=True, slots=True)
class Recall:
    """The memories of d agents before a decision.

    At an episode's start, the memories are zeros, and the previous actions are `first_action_features`.
    """

    memories: NDArray[np.float32]
    """[d, m] memory of each agent."""
    previous_actions: NDArray[np.float32]
    """[d, P] last action of each agent, as the environment received it: continuous values, then a one-hot vector per
    branch."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A policy's decision for d agents."""

    actions: ActionBatch
    """The actions for the environment stage, in [-1, 1] where they are scaled."""
    columns: Mapping[str, Array]
    """[d, ...] trajectory columns: the actions as the policy drew them, log_probs, `memories` before the decision."""
    recall: Recall | None = None
    """The memories for the agents' next decision; None for a policy without memory."""


class ActingPolicy(Protocol):
    """A policy that makes an actor's decisions for one behaviour id."""

    @property
    def memory_size(self) -> int:
        """m, the size of an agent's memory; 0 for a policy without memory."""
        ...

    @property
    def previous_action_size(self) -> int:
        """P, the width of the previous action as a network input; 0 for a policy without memory."""
        ...

    def load(self, update: PolicyUpdate) -> None:
        """Load the weights of an update, as copies.

        Raises:
            StageError: if the update was made for a different network; the message names the tensor.
        """
        ...

    def act(
        self,
        observations: tuple[Array, ...],
        masks: NDArray[np.bool_] | None,
        random: np.random.Generator,
        deterministic: bool = False,
        recall: Recall | None = None,
    ) -> Decision:
        """Decide for d agents.

        Args:
            observations: one array [d, *shape] per observation spec.
            masks: [d, sum of branches] true = allowed, or None.
            random: the only source of randomness in the decision.
            deterministic: whether to take the mean and the most likely choice instead of a sample.
            recall: the agents' memories; None for the first decision of an episode.

        Raises:
            NotFiniteError: if a head output is NaN or infinite.
            StageError: if no policy is loaded yet, a mask forbids all choices of a branch, or an ONNX model fails.
        """
        ...

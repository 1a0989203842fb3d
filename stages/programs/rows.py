"""The agents of one behaviour in one message of a program, as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Array


@dataclass(frozen=True, slots=True)
class ProgramRows:
    """The rows of one behaviour in one message: n rows, of which the first `ended` are endings, in the program's order.

    The other d = n - ended ask for a decision. An agent that ended and restarted within a step has a row of each kind.
    """

    ids: NDArray[np.int32]
    """[n] the program's own agent ids."""
    rewards: NDArray[np.float32]
    """[n] since the agent's previous decision."""
    ended: int
    interrupted: NDArray[np.bool_]
    """[ended] true if the episode was truncated (by its step limit), not terminated by the task."""
    observations: tuple[Array, ...]
    """[n, *shape] per observation spec, in its dtype."""
    action_masks: NDArray[np.bool_] | None
    """[d, sum of branches] true = allowed; None without discrete actions."""
    group_ids: NDArray[np.int32]
    """[n] 0 for none."""
    group_rewards: NDArray[np.float32]
    """[n] the group's reward since the agent's previous decision."""

    def __len__(self) -> int:
        return len(self.ids)

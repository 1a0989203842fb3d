"""How many steps actors send to a trainer at a time, computed on both sides from the settings and the trainer type."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.config import BehaviorSettings

USUAL_BUFFER_SIZE = 1024
"""`buffer_size` assumed for a custom trainer that has none; flow control also works if the trainer uses a different
number."""

_OFF_POLICY_ROWS = 8
"""Number of steps between two policies of an off-policy trainer.

It is small enough that policies stay up to date, and large enough that messages do not cost more than learning.
"""


# Credits also pace off-policy trainers: otherwise, actors would run ahead by the capacity of a queue
# (docs/decisions/023).
def rows_per_update(settings: BehaviorSettings, agents: int, off_policy: bool) -> int:
    """Return the number of rows after which the trainer learns and publishes a policy.

    Args:
        settings: the behaviour's settings.
        agents: the number of agents that act concurrently.
        off_policy: whether the trainer can learn from steps of any age.
    """
    usual = agents * longest_piece(settings, agents, off_policy) if off_policy else USUAL_BUFFER_SIZE
    return _own_rows(settings, off_policy) or usual


def longest_piece(settings: BehaviorSettings, agents: int, off_policy: bool) -> int:
    """Return the number of steps after which an agent's trajectory is cut.

    The number is `time_horizon` or, for IMPALA, the length of an unroll. For an off-policy trainer, which need not wait
    for long trajectories, it is smaller. If the policy has a memory, it is the length of a sequence.
    """
    if not off_policy:
        hyperparameters = settings.hyperparameters
        own = None if isinstance(hyperparameters, Mapping) else hyperparameters.longest_piece
        return settings.time_horizon if own is None else own
    memory = settings.network_settings.memory
    rows = _own_rows(settings, off_policy) or _OFF_POLICY_ROWS
    return min(settings.time_horizon, max(1, -(-rows // agents)) if memory is None else memory.sequence_length)


def _own_rows(settings: BehaviorSettings, off_policy: bool) -> int | None:
    """Return the number of rows after which the trainer learns; None if its settings do not define it."""
    hyperparameters = settings.hyperparameters
    if not isinstance(hyperparameters, Mapping):
        return hyperparameters.rows_per_update
    size = None if off_policy else hyperparameters.get("buffer_size")
    return size if isinstance(size, int) and size > 0 else None

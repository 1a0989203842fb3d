"""The number of steps that actors send to a trainer at a time: both sides compute it from settings and trainer type."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.config import BehaviorSettings

USUAL_BUFFER_SIZE = 1024
"""Assumed for a custom trainer without a `buffer_size`; flow control copes with another number."""

_OFF_POLICY_ROWS = 8
"""Steps between two policies of an off-policy trainer: few enough that policies stay fresh, and enough that messages do
not cost more than learning."""


# Credits pace off-policy trainers too: otherwise actors run ahead by whatever a queue holds (docs/decisions/023).
def rows_per_update(settings: BehaviorSettings, agents: int, off_policy: bool) -> int:
    """Rows after which the trainer learns and publishes a policy.

    Args:
        settings: the behaviour's settings.
        agents: the number of agents that act at a time.
        off_policy: the trainer learns from steps of any age.
    """
    if off_policy:
        return _off_policy_rows(settings) or agents * longest_piece(settings, agents, off_policy)
    hyperparameters = settings.hyperparameters
    if isinstance(hyperparameters, Mapping):
        size = hyperparameters.get("buffer_size")
    else:
        size = hyperparameters.rows_per_update
    return size if isinstance(size, int) and size > 0 else USUAL_BUFFER_SIZE


def longest_piece(settings: BehaviorSettings, agents: int, off_policy: bool) -> int:
    """Steps at which an agent's trajectory is cut: `time_horizon`, an unroll, or less for an off-policy trainer.

    An off-policy trainer need not wait for long trajectories; with memory, a piece is one sequence.
    """
    if not off_policy:
        hyperparameters = settings.hyperparameters
        own = None if isinstance(hyperparameters, Mapping) else hyperparameters.longest_piece
        return settings.time_horizon if own is None else own
    memory = settings.network_settings.memory
    rows = _off_policy_rows(settings) or _OFF_POLICY_ROWS
    return min(settings.time_horizon, max(1, -(-rows // agents)) if memory is None else memory.sequence_length)


def _off_policy_rows(settings: BehaviorSettings) -> int | None:
    """Rows after which an off-policy trainer learns, if its settings define it."""
    hyperparameters = settings.hyperparameters
    return None if isinstance(hyperparameters, Mapping) else hyperparameters.rows_per_update

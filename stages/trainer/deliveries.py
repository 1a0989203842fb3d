"""A check that no trajectory arrives twice, out of order or never, which tests turn on."""

from __future__ import annotations

import os

import numpy as np

from headrace.queues.messages import TrajectoryBatch
from headrace.stages.errors import StageError

# Only tests check deliveries, by setting `HEADRACE_DELIVERIES`: custom stages may legitimately drop, delay or duplicate
# trajectories.
VARIABLE = "HEADRACE_DELIVERIES"
"""Environment variable that turns on the check. With `once`, no trajectory may arrive twice or out of order within its
source; with `all`, none may be missing either."""


class DeliveryError(StageError):
    """Raised if a trajectory arrives twice, out of order, or never; the message gives source and sequence numbers."""


class Deliveries:
    """Checks the sequence numbers of trajectories that arrive at a trainer, per behaviour id and source.

    Args:
        complete: whether to require all numbers, starting with 0.
    """

    def __init__(self, complete: bool) -> None:
        self._complete = complete
        self._next: dict[tuple[str, int], int] = {}

    @classmethod
    def asked_for(cls) -> Deliveries | None:
        """Make the checker that the environment variable requests; return None if it requests no check."""
        asked = os.environ.get(VARIABLE)
        return cls(complete=asked == "all") if asked in ("once", "all") else None

    def check(self, batch: TrajectoryBatch) -> None:
        """Check a batch. Batches without sequence numbers, from a custom stage, pass.

        Raises:
            DeliveryError: if a trajectory arrives twice or out of order, or if an earlier trajectory is missing.
        """
        numbers = batch.trajectories.get("numbers")
        if numbers is None or not len(numbers):
            return
        key = batch.behavior_id, batch.source
        next_number = self._next.get(key, 0)
        steps = np.diff(numbers, prepend=next_number - 1)
        wrong = np.flatnonzero(steps != 1 if self._complete else steps < 1)
        if len(wrong):
            expected = int(numbers[wrong[0]] - steps[wrong[0]]) + 1
            number = int(numbers[wrong[0]])
            what = "is a duplicate or out of order" if number < expected else f"arrived, but {expected} did not"
            raise DeliveryError(
                f"{batch.behavior_id}: trajectory {number} of actor {batch.source} {what}: expected "
                f"{'' if self._complete else 'at least '}number {expected}, got a batch of {int(numbers[0])} to "
                f"{int(numbers[-1])}; {VARIABLE} enables this check"
            )
        self._next[key] = int(numbers[-1]) + 1

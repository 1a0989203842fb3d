"""A check for tests that trajectories reach a trainer once: each actor numbers what it emits.

It is off unless the environment variable `HEADRACE_DELIVERIES` asks for it, since a custom stage may drop, hold back or
double what it likes.
"""

from __future__ import annotations

import os

import numpy as np

from headrace.queues.messages import TrajectoryBatch
from headrace.stages.errors import StageError

VARIABLE = "HEADRACE_DELIVERIES"
"""`once`: no trajectory may come twice or out of its source's order; `all`: nor may one be missing."""


class DeliveryError(StageError):
    """A trajectory came twice, out of order, or not at all; the message names source and numbers."""


class Deliveries:
    """Checks the numbers of the trajectories that come to one trainer, by behaviour id and source.

    Args:
        complete: none may be missing, from number 0 on.
    """

    def __init__(self, complete: bool) -> None:
        self._complete = complete
        self._next: dict[tuple[str, int], int] = {}

    @classmethod
    def asked_for(cls) -> Deliveries | None:
        """Make the check that the environment variable asks for, None for none."""
        asked = os.environ.get(VARIABLE)
        return cls(complete=asked == "all") if asked in ("once", "all") else None

    def check(self, batch: TrajectoryBatch) -> None:
        """Check a batch; one without numbers, made by a custom stage or an earlier release, passes.

        Raises:
            DeliveryError: if a trajectory comes twice, out of order, or after one that is missing.
        """
        numbers = batch.trajectories.get("numbers")
        if numbers is None or not len(numbers):
            return
        key = batch.behavior_id, batch.source
        came = self._next.get(key, 0)
        steps = np.diff(numbers, prepend=came - 1)
        wrong = np.flatnonzero(steps != 1 if self._complete else steps < 1)
        if len(wrong):
            expected = int(numbers[wrong[0]] - steps[wrong[0]]) + 1
            number = int(numbers[wrong[0]])
            what = "comes twice or out of order" if number < expected else f"comes, and {expected} has not"
            raise DeliveryError(
                f"{batch.behavior_id}: trajectory {number} of actor {batch.source} {what}: expected "
                f"{'' if self._complete else 'at least '}number {expected}, got a batch of {int(numbers[0])} to "
                f"{int(numbers[-1])}; {VARIABLE} asks for this check"
            )
        self._next[key] = int(numbers[-1]) + 1

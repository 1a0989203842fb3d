"""Keeps counts of steps and versions continuous when a new trainer replaces one that was lost or restarts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import PolicyUpdate, TrajectoryBatch
from headrace.stages.trainer.protocol import Trainer


class Takeover:
    """Earlier trainers' step and version totals, and the request for a new trainer.

    Args:
        make: makes a trainer with initial weights; None if the trainer is never replaced.

    Attributes:
        steps: the number of steps that earlier trainers have counted.
        versions: the number of policy versions that earlier trainers have used.
        wanted: true if a new trainer is due to take over.
        oldest: version of the current trainer's first policy; steps by older versions belong to a previous trainer. -1
            if this is the first trainer.
    """

    def __init__(self, make: Callable[[], Trainer] | None) -> None:
        self._make = make
        self.wanted = False
        self._number = 0
        """Number of the newest request, whether granted or pending."""
        self._weights: NDArray[np.float32] | None = None
        self.oldest = -1
        self.steps = 0
        self.versions = 0

    def want(self, number: int, weights: NDArray[np.float32] | None) -> None:
        """Request a new trainer with a new optimizer, normaliser and schedules.

        Args:
            number: increases with each request, and is at least the policy version at which the request was decided. A
                request has no effect unless its number is above all earlier ones, including those from a checkpoint.
            weights: the weights of the new trainer's first policy; None for newly drawn weights.
        """
        if number > self._number:
            self._number, self.wanted, self._weights = number, True, weights

    def next(self, before: Trainer) -> Trainer:
        """Make and return the new trainer that takes over from `before`."""
        assert self._make is not None, "only called to replace the trainer"
        version, trainer = before.version + self.versions + 1, self._make()
        if self._weights is not None:
            trainer.take_weights(replace(trainer.policy(), weights=self._weights).tensors())
        self.wanted, self._weights = False, None
        self.steps += before.step
        self.versions, self.oldest = version - trainer.version, version
        return trainer

    def number_above(self, version: int, present: int) -> bool:
        """Give policies higher versions than this one, which a lost trainer used.

        Return False if they already have higher versions.
        """
        lost = version + 1 - present - self.versions
        if version < 0 or lost <= 0:
            return False
        self.versions += lost
        return True

    def numbered(self, policy: PolicyUpdate) -> PolicyUpdate:
        """Return the current trainer's policy with the totals added to its version and step."""
        if not (self.versions or self.steps):
            return policy
        return replace(policy, version=policy.version + self.versions, step=policy.step + self.steps)

    def own(self, batch: TrajectoryBatch) -> tuple[TrajectoryBatch, int]:
        """Return the trajectories by the current trainer's policies, and the credits of all other trajectories."""
        keep = batch.trajectories["first_version"] >= self.oldest
        others = 0 if keep.all() else int(batch.trajectories["credits"][~keep].sum())
        return batch if keep.all() else batch.select(keep), others

    def state_dict(self) -> dict[str, Any]:
        """Return the data that the stage must save for this object; empty if no trainer has been replaced."""
        lost = {"lost_updates": self.versions} if self.versions else {}
        pending = {"begins_anew": {"weights": self._weights}} if self.wanted else {}
        number = {"begun_anew": self._number} if self._number else {}
        former = {"former_steps": self.steps, "oldest_version": self.oldest} if self.steps else {}
        return pending | number | lost | former

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from the stage's state."""
        self.wanted = "begins_anew" in state
        self._weights = state["begins_anew"]["weights"] if self.wanted else None
        self.versions = int(state.get("lost_updates", 0))
        self.steps, self.oldest = int(state.get("former_steps", 0)), int(state.get("oldest_version", -1))
        self._number = int(state.get("begun_anew", 0))

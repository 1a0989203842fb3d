"""The ratio of updates to agent steps, exact whatever the pipeline's timing."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any


class UpdateRatio:
    """Counts updates against steps, however many steps come at a time.

    Args:
        steps_per_update: agent steps for each update; below 1 for several updates a step.
        first_step: steps up to this one owe nothing.
    """

    def __init__(self, steps_per_update: float, first_step: int) -> None:
        self._steps_per_update = steps_per_update
        self._first_step = first_step
        self._updates = 0

    def owes(self, step: int) -> bool:
        """Return True if fewer updates were made than `step` agent steps ask for."""
        return self._updates * self._steps_per_update < step - self._first_step

    def owed(self, step: int) -> int:
        """Return how many updates are missing."""
        return max(0, ceil((step - self._first_step) / self._steps_per_update) - self._updates)

    def count(self) -> None:
        """Count one more update."""
        self._updates += 1

    def restart(self, first_step: int) -> None:
        """Count from this step on, as if no update had been owed before."""
        self._first_step = first_step
        self._updates = 0

    def state_dict(self) -> dict[str, Any]:
        """The count of updates, the step that it starts from, and the ratio."""
        return {
            "first_step": self._first_step,
            "updates": self._updates,
            "steps_per_update": self._steps_per_update,
        }

    def load_state_dict(self, state: Mapping[str, Any], step: int) -> None:
        """Continue from `state_dict()`, made at this step; a changed ratio holds from here on only."""
        self._first_step = int(state["first_step"])
        self._updates = int(state["updates"])
        if state["steps_per_update"] != self._steps_per_update:
            self.restart(max(step, self._first_step))

"""How many updates are due: counted against steps, as they come or up to the end of an episode."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import ceil
from typing import Any

from headrace.config import SACHyperparameters
from headrace.queues.messages import TrajectoryBatch
from headrace.stages.trainer.protocol import TrainerContext

log = logging.getLogger(__name__)


class UpdateRatio:
    """Counts updates against steps exactly, however many steps come at a time.

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


class UpdatePace:
    """The updates of a behaviour's policy and of its reward signals that are due.

    Args:
        context: the trainer's.
        hyperparameters: the behaviour's.

    Attributes:
        of_policy: counts the policy's updates.
        of_signals: counts those of the reward signals' networks.
        due_step: the steps that owe updates.
    """

    def __init__(self, context: TrainerContext, hyperparameters: SACHyperparameters) -> None:
        self._context = context
        self._hyperparameters = h = hyperparameters
        self.of_policy = UpdateRatio(h.steps_per_update, h.buffer_init_steps)
        self.of_signals = UpdateRatio(h.reward_signal_steps_per_update, h.buffer_init_steps)
        self.due_step = 0
        self._told_of_waiting = False

    def add(self, batch: TrajectoryBatch, step: int) -> None:
        """Take in trajectories, with which `step` steps have come in all."""
        if self._hyperparameters.update_at == "step" or (batch.terminated | batch.truncated).any():
            self.due_step = step
        elif not self._told_of_waiting:
            self._tell_of_waiting(step)

    def owes(self, ratio: UpdateRatio) -> bool:
        """Return True if an update that this ratio counts is missing."""
        return ratio.owes(self.due_step)

    def owed(self, ratio: UpdateRatio) -> int:
        """Return how many of them are missing."""
        return ratio.owed(self.due_step)

    def restart(self, step: int) -> None:
        """Count from this step on as from the beginning: `buffer_init_steps` come before the first update."""
        for ratio in (self.of_policy, self.of_signals):
            ratio.restart(step + self._hyperparameters.buffer_init_steps)

    def state_dict(self) -> dict[str, Any]:
        """Both counts, and the steps that owe updates."""
        return {
            "due_step": self.due_step,
            "ratio": self.of_policy.state_dict(),
            "signal_ratio": self.of_signals.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], step: int) -> None:
        """Continue from `state_dict()`, made at this step."""
        # States that are older than `update_at` lack it.
        self.due_step = step if self._hyperparameters.update_at == "step" else int(state.get("due_step", step))
        self.of_policy.load_state_dict(state["ratio"], step)
        self.of_signals.load_state_dict(state["signal_ratio"], step)

    def _tell_of_waiting(self, step: int) -> None:
        """Warn once steps would leave the buffer unlearned, or a tenth of the run is over, because no episode ends."""
        waited = step - self.due_step
        if waited < min(self._hyperparameters.buffer_size, max(1, self._context.settings.max_steps // 10)):
            return
        self._told_of_waiting = True
        log.warning(
            "%s: no episode has ended in %d steps, and with hyperparameters.update_at: episode_end nothing is learned "
            "before one does. Let episodes end, for instance by environment.max_episode_steps, or use update_at: step.",
            self._context.behavior,
            waited,
        )

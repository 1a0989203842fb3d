"""How many updates are due, counted either per step that arrives, or in rounds of several steps or episodes.

Rounds work as in Stable-Baselines3 (`train_freq` and `gradient_steps`). They are counted from the run's first step, and
a round that ends after `buffer_init_steps` makes all of its updates, even if it began earlier.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

import numpy as np

from headrace.config import SACHyperparameters
from headrace.queues.messages import TrajectoryBatch
from headrace.stages.trainer.protocol import TrainerContext

log = logging.getLogger(__name__)


class UpdateRatio:
    """Keeps an exact ratio of updates to steps, no matter how many steps arrive at a time.

    Args:
        steps_per_update: agent steps per update; below 1 for several updates per step.
        first_step: no updates are due for the steps up to this one.
    """

    def __init__(self, steps_per_update: float, first_step: int) -> None:
        self._steps_per_update = steps_per_update
        self._first_step = first_step
        self._updates = 0

    def is_due(self, step: int) -> bool:
        """Return True if fewer updates have been made than are due at `step` agent steps."""
        return self._updates * self._steps_per_update < step - self._first_step

    def updates_due(self, step: int) -> int:
        """Return the number of updates still due at `step` agent steps."""
        return max(0, ceil((step - self._first_step) / self._steps_per_update) - self._updates)

    def count(self) -> None:
        """Count one update."""
        self._updates += 1

    def restart(self, first_step: int) -> None:
        """Count from this step onwards, as if no update had been due before."""
        self._first_step = first_step
        self._updates = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the number of updates, the step from which steps are counted, and the ratio."""
        return {
            "first_step": self._first_step,
            "updates": self._updates,
            "steps_per_update": self._steps_per_update,
        }

    def load_state_dict(self, state: Mapping[str, Any], step: int) -> None:
        """Restore a `state_dict()` that was made at this step; a changed ratio applies only to later steps."""
        self._first_step = int(state["first_step"])
        self._updates = int(state["updates"])
        if state["steps_per_update"] != self._steps_per_update:
            self.restart(max(step, self._first_step))


@dataclass(frozen=True, kw_only=True, slots=True)
class PaceSettings:
    """When updates are due: the hyperparameters of `sac` with these names, and their meaning and defaults there."""

    buffer_init_steps: int = 0
    """Steps to collect before the first update."""
    steps_per_update: float = 1.0
    """Steps per update; below 1 for several updates per step."""
    update_at: Literal["step", "episode_end"] = "step"
    """Whether rounds of updates are counted in steps or in episodes."""
    train_freq: int | None = None
    """Steps or episodes in a round; None for updates as steps arrive, or rounds of one episode."""
    gradient_steps: int | None = None
    """Updates in each round; None for one update for every `steps_per_update` steps of the round."""
    reward_signal_steps_per_update: float = 1.0
    """Steps per update of the reward signals' networks, which `UpdatePace.of_signals` counts."""
    buffer_size: int = 2**63
    """Rows in the replay memory; a run warns if no episode ends within this number of steps."""


class UpdatePace:
    """Determines which updates of a behaviour's policy and of its reward signals are due.

        pace.add(batch, step)  # for each batch, after the step count has grown
        while pace.is_due(pace.of_policy):
            …  # one gradient step
            pace.of_policy.count()

    Args:
        context: the trainer's context.
        hyperparameters: the behaviour's hyperparameters.

    Attributes:
        of_policy: counts the policy's updates.
        of_signals: counts the updates of the reward signals' networks.
    """

    def __init__(self, context: TrainerContext, hyperparameters: SACHyperparameters | PaceSettings) -> None:
        self._context = context
        self._hyperparameters = h = hyperparameters
        self._by_episodes = h.update_at == "episode_end"
        self._in_rounds = self._by_episodes or h.train_freq is not None
        self.of_policy = UpdateRatio(h.steps_per_update if h.gradient_steps is None else 1.0, 0)
        self.of_signals = UpdateRatio(h.reward_signal_steps_per_update, 0)
        self._due_step = 0
        """The number of steps for which updates are due; with rounds, the steps up to the end of the last round."""
        self._due_updates = 0
        """With `gradient_steps`, the number of policy updates due for all rounds so far."""
        self._episodes = self._last_end = 0
        """The number of episodes that have ended, and the step at which the last one ended."""
        self._told_of_waiting = False
        self._first_step = 0
        self.restart(0)

    def add(self, batch: TrajectoryBatch, step: int) -> None:
        """Count trajectories; `step` is the total number of steps that have arrived, including these."""
        if not self._in_rounds:
            self._due_step = step
            return
        for end in self._ends_of_rounds(batch, step):
            self._due_step = end
            if end <= self._first_step:
                self._count_from(end)
            else:
                self._due_updates += self._hyperparameters.gradient_steps or 0
        waited = step - self._last_end
        patience = min(self._hyperparameters.buffer_size, max(1, self._context.settings.max_steps // 10))
        if self._by_episodes and not self._told_of_waiting and waited >= patience:
            self._told_of_waiting = True
            log.warning(
                "%s: no episode has ended in %d steps, and with hyperparameters.update_at: episode_end the trainer "
                "learns nothing until one does. Limit the length of episodes, for instance with "
                "environment.max_episode_steps, or use update_at: step.",
                self._context.behavior,
                waited,
            )

    def postpone(self, step: int) -> None:
        """Cancel the updates due up to this step, because the memory has too few rows.

        Rounds of episodes are only delayed, not cancelled.
        """
        if not self._by_episodes and step > self._first_step:
            self._first_step = step
            self._count_from(step)

    def is_due(self, ratio: UpdateRatio) -> bool:
        """Return True if an update that this ratio counts is due."""
        return ratio.is_due(self._due(ratio))

    def updates_due(self, ratio: UpdateRatio) -> int:
        """Return the number of due updates that this ratio counts."""
        return ratio.updates_due(self._due(ratio))

    def restart(self, step: int) -> None:
        """Count from this step onwards as at the start of a run: `buffer_init_steps` come before the first update."""
        self._first_step = step + self._hyperparameters.buffer_init_steps
        self._count_from(step if self._in_rounds else self._first_step)

    def state_dict(self) -> dict[str, Any]:
        """Return both counts, and the numbers that they are compared with."""
        return {
            "due_step": self._due_step,
            "due_updates": None if self._hyperparameters.gradient_steps is None else self._due_updates,
            "episodes": self._episodes,
            "first_step": self._first_step,
            "ratio": self.of_policy.state_dict(),
            "signal_ratio": self.of_signals.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], step: int) -> None:
        """Restore a `state_dict()` that was made at this step."""
        self._due_step = int(state["due_step"]) if self._in_rounds else step
        self._last_end, self._episodes = self._due_step, int(state["episodes"])
        self._first_step = int(state["first_step"])
        due_updates = state["due_updates"]
        if (due_updates is None) == (self._hyperparameters.gradient_steps is None):
            self._due_updates = due_updates or 0
            self.of_policy.load_state_dict(state["ratio"], step)
        else:
            self._count_from(step if self._in_rounds else max(step, self._first_step))
        self.of_signals.load_state_dict(state["signal_ratio"], step)

    def _due(self, ratio: UpdateRatio) -> int:
        """Return the number that a ratio's count of updates is compared with."""
        by_rounds = ratio is self.of_policy and self._hyperparameters.gradient_steps is not None
        return self._due_updates if by_rounds else self._due_step

    def _count_from(self, step: int) -> None:
        self.of_signals.restart(step)
        self._due_updates = 0
        self.of_policy.restart(step if self._hyperparameters.gradient_steps is None else 0)

    def _ends_of_rounds(self, batch: TrajectoryBatch, step: int) -> list[int]:
        """Return the steps at which rounds end within a batch; `step` is the total number of steps after the batch."""
        before, period = step - batch.num_rows, self._hyperparameters.train_freq or 1
        if not self._by_episodes:
            return [*range(before - before % period + period, step + 1, period)]
        over = batch.terminated | batch.truncated
        ends: list[int] = (before + np.cumsum(batch.lengths)[over]).tolist()
        earlier = self._episodes % period
        self._episodes += len(ends)
        self._last_end = ends[-1] if ends else self._last_end
        return ends[period - earlier - 1 :: period]

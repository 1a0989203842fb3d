"""Histograms of the actions that are learned from: `action/<head>`, by the names of the action spec's heads."""

from __future__ import annotations

import numpy as np

from headrace.queues.messages import Array, Columns
from headrace.queues.specs import ActionSpec
from headrace.stages.policy.actions import environment_actions
from headrace.stages.stage import Statistics

SAMPLED_PER_UPDATE = 32
"""Rows of an update whose actions are shown, of small ones fewer: all would cost more than they tell."""
_SMALLEST_STRIDE = 32


class ActionHistograms:
    """Samples actions and reports them: of discrete heads the choices, of continuous ones what environments receive.

    Every so many rows of all that arrive one is taken, so that each row counts as much as another.

    Args:
        actions: the behaviour's.
        squashed: True if continuous ones were drawn as SAC draws them.
        rows_per_update: of the trainer.
    """

    def __init__(self, actions: ActionSpec, squashed: bool, rows_per_update: int) -> None:
        self._actions = actions
        self._squashed = squashed
        self._stride = max(_SMALLEST_STRIDE, rows_per_update // SAMPLED_PER_UPDATE)
        self._next = 0
        """Rows to pass over before the next one is taken."""
        self._taken: dict[str, list[Array]] = {"continuous_actions": [], "discrete_actions": []}
        self._count = 0
        """Rows that were taken and not reported yet."""
        self._reported = False

    @property
    def due(self) -> bool:
        """True if there is enough to report; of a run's first rows anything is."""
        return self._count >= (SAMPLED_PER_UPDATE if self._reported else 1)

    def add(self, rows: Columns, count: int) -> None:
        """Take some of a batch's rows [count, …]; copied."""
        if self._next < count:
            for name, taken in self._taken.items():
                if name in rows:
                    taken.append(rows[name][self._next :: self._stride].copy())
            several = -(-(count - self._next) // self._stride)
            self._count += several
            self._next += several * self._stride
        self._next -= count

    def report(self, statistics: Statistics, behavior: str) -> None:
        """Report what was taken."""
        heads = {"continuous_actions": self._actions.continuous_heads, "discrete_actions": self._actions.branch_heads}
        for name, taken in self._taken.items():
            if taken:
                values = np.concatenate(taken)
                if name == "continuous_actions":
                    values = environment_actions(self._actions, values, self._squashed)
                for head, column in zip(heads[name], values.T, strict=True):
                    statistics.extend(behavior, f"action/{head}", column)
                taken.clear()
        self._count, self._reported = 0, True

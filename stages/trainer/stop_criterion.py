"""The criterion by which a trainer stops before `max_steps`: its returns have reached a mark, or rise no more."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from headrace.config.behaviors import StopWhenSettings


class StopCriterion:
    """Judges the returns of the episodes that have ended in a trainer's stream.

    It depends on the order of that stream alone, so the replicas of a trainer agree, and so do deterministic runs.

    Args:
        settings: the behaviour's `stop_when`; None: it never stops.

    Attributes:
        met: why it has stopped, for people; empty while it goes on.
    """

    def __init__(self, settings: StopWhenSettings | None) -> None:
        self.met = ""
        self._settings = settings
        self._best = -math.inf
        self._best_step = 0

    @property
    def episodes(self) -> int:
        """Number of returns that it looks at."""
        return 0 if self._settings is None else self._settings.over

    def look(self, step: int, recent: Sequence[float]) -> None:
        """Judge.

        Args:
            step: the trainer's.
            recent: returns of the last episodes, at least as many as `episodes` if there were as many.
        """
        settings = self._settings
        if settings is None or self.met or len(recent) < settings.over:
            return
        mean = math.fsum(islice(reversed(recent), settings.over)) / settings.over
        if settings.mean_reward is not None and mean >= settings.mean_reward:
            self.met = f"the mean return of {settings.over} episodes is {mean:g} (stop_when.mean_reward)"
        if mean > self._best:
            self._best, self._best_step = mean, step
        elif settings.plateau is not None and step - self._best_step >= settings.plateau and not self.met:
            since = step - self._best_step
            self.met = (
                f"the mean return of {settings.over} episodes has not risen for {since} steps (stop_when.plateau)"
            )

    def state_dict(self) -> Mapping[str, Any]:
        """Return the highest mean so far, and its step."""
        return {"best": self._best, "best_step": self._best_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._best, self._best_step = float(state["best"]), int(state["best_step"])

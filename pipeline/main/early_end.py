"""Ends of a run before its trainers have all their steps: by its caller, its time, or the ratings that it reaches."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from headrace.pipeline.control.messages import LearnNoMore
from headrace.pipeline.main.behavior import BehaviorState
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.main.shutdown import Shutdown

log = logging.getLogger(__name__)

STOPPED, OUT_OF_TIME = "stop", "max_wall_time_s"


class EarlyEnd:
    """Watches for reasons to end early.

    Args:
        plan: the run.
        shutdown: its end.
        clock: seconds, from any start.

    Attributes:
        ended_by: `stop` if the run was asked to end before its trainers were done, `max_wall_time_s` if its time was
            over; else empty.
    """

    def __init__(self, plan: RunPlan, shutdown: Shutdown, clock: Callable[[], float] = time.monotonic) -> None:
        self.ended_by = ""
        self._plan = plan
        self._shutdown = shutdown
        self._limit_s = plan.config.pipeline.max_wall_time_s
        self._began_s = clock()
        self._told: set[str] = set()

    async def watch(self, stop: asyncio.Event) -> None:
        """End the run when it is asked to."""
        await stop.wait()
        playing = self._plan.playing
        self._end(
            STOPPED, "Stopped." if playing else "Learning was interrupted. Please wait while a checkpoint is saved."
        )

    def check_time(self, now_s: float) -> None:
        """End the run if its time is over."""
        if self._limit_s is not None and not self._shutdown.begun and now_s - self._began_s >= self._limit_s:
            words = "The run has taken its %g s (pipeline.max_wall_time_s). Please wait while a checkpoint is saved."
            self._end(OUT_OF_TIME, words % self._limit_s)

    def check_rating(self, state: BehaviorState) -> None:
        """Let a behaviour learn no more if its rating is high enough."""
        wanted = state.settings.stop_when.elo if state.settings.stop_when is not None else None
        if wanted is None or state.elo is None or state.elo < wanted or state.done or state.learner is None:
            return
        if state.behavior not in self._told:
            self._told.add(state.behavior)
            state.learner.control.send(LearnNoMore(f"its rating is {state.elo:.1f} (stop_when.elo)"))

    def _end(self, why: str, words: str) -> None:
        if not self._shutdown.begun:
            self.ended_by = why
        log.info("%s", words)
        self._shutdown.finish()

"""Curricula in main: receives trainers' reports, and sends new lessons to the environments."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from headrace.pipeline.main.launcher import ActorSlot
from headrace.pipeline.main.run_part import Run, RunPart
from headrace.pipeline.main.run_plan import RunPlan
from headrace.pipeline.parts.curricula.curricula import Curricula, MeasuredProgress
from headrace.stages.trainer.report import TrainerReport

log = logging.getLogger(__name__)


class CurriculaPart(RunPart):
    """Begins lessons; in a deterministic run, this happens only while all actors are idle, so timing has no effect."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._curricula = curricula_of(run.plan)

    async def start(self) -> None:
        """Log the lessons at which the run starts."""
        for text in self._curricula.describe():
            log.info("%s", text)

    async def actor_started(self, slot: ActorSlot) -> None:
        """Send an actor the parameters, which it needs before it creates its environments."""
        slot.handle.control.send(self._curricula.current_parameters())

    def reported(self, report: TrainerReport) -> None:
        """Record a trainer's report; unless the run is deterministic, begin lessons that are due."""
        self._curricula.record(report)
        if not self.run.plan.deterministic:
            self._advance()

    def summarised(self, report: TrainerReport) -> None:
        """Add the current lessons to the statistics."""
        for parameter, lesson in self._curricula.lessons.items():
            name = f"Environment/Lesson Number/{parameter}"
            self.run.statistics.add(report.behavior, name, float(lesson), "last")

    def at_rest(self) -> None:
        """Begin lessons that are due in a deterministic run."""
        self._advance()

    def progress(self) -> Mapping[str, Any]:
        """Return the current lessons, and the returns that determine when the lessons end."""
        if self.run.plan.deterministic:
            self._advance()  # so that a run resumed from here begins them at the same point
        return {"curricula": self._curricula.state_dict()}

    def lessons(self) -> Mapping[str, int]:
        """Return each parameter's current lesson number."""
        return self._curricula.lessons

    def _advance(self) -> None:
        """Begin lessons that are due; do nothing for a recording, which can't change its parameters."""
        plan = self.run.plan
        begun = None if plan.playing or plan.replay_edge else self._curricula.advance(self._measures)
        if begun is not None:
            self.run.broadcaster.send_to_sources(begun)

    def _measures(self, behavior: str) -> MeasuredProgress | None:
        state = self.run.behaviors.get(behavior)
        return MeasuredProgress(state.step, state.settings.max_steps, state.elo) if state is not None else None


def curricula_of(plan: RunPlan) -> Curricula:
    """Return a run's curricula, set to the lessons from which the run continues."""
    curricula = Curricula(plan.config.environment_parameters)
    if plan.resumed is not None and "curricula" in plan.resumed.progress:
        curricula.load_state_dict(plan.resumed.progress["curricula"])
    elif plan.resumes:
        curricula.begin_at(plan.folder.read_training_status().lessons)
    return curricula

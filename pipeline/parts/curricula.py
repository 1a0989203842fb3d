"""Curricula in main: receives trainers' reports, and sends new lessons to the environments."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from headrace.config import (
    CompletionCriteria,
    ConstantSampler,
    Curriculum,
    EnvironmentParameter,
    GaussianSampler,
    MultiRangeSampler,
    UniformSampler,
)
from headrace.config.environment_parameters import ParameterValue
from headrace.pipeline.main.behavior import BehaviorState
from headrace.pipeline.main.launcher import ActorSlot
from headrace.pipeline.main.run_part import Run, RunPart
from headrace.pipeline.main.run_plan import RunPlan
from headrace.stages.environments.parameters import (
    EnvironmentParameters,
    all_criteria,
    kept_returns,
    lessons_of,
    plain_value,
)
from headrace.stages.trainer.report import TrainerReport

log = logging.getLogger(__name__)


SMOOTHING = 0.25
"""Weight of the previous smoothed mean return, as in ML-Agents."""


class Curricula:
    """A run's environment parameters, with the current lesson of each curriculum.

    A mean return covers the newest episodes that *began* in the current lessons; episodes in progress when a lesson
    changes do not count. When any lesson changes, all means and their smoothing restart; smoothing starts from the
    first value instead of zero.

    Args:
        parameters: the YAML's `environment_parameters`.
    """

    def __init__(self, parameters: Mapping[str, EnvironmentParameter] | None) -> None:
        self._courses = {name: lessons_of(parameter) for name, parameter in (parameters or {}).items()}
        self._lessons = {name: 0 for name, parameter in (parameters or {}).items() if isinstance(parameter, Curriculum)}
        self._generation = 0
        self._returns = {
            criterion.behavior: deque[float](maxlen=kept_returns(parameters, criterion.behavior))
            for criterion in all_criteria(parameters)
        }
        self._smoothed: dict[str, float] = {}
        self._steps: dict[str, int] = {}
        self._reported: set[str] = set()

    @property
    def lessons(self) -> Mapping[str, int]:
        """Current lesson number, counted from 0, of each parameter that has a curriculum; keyed by parameter name."""
        return dict(self._lessons)

    def current_parameters(self, reset: bool = False) -> EnvironmentParameters:
        """Return the message that sends the current values and samplers to the environments."""
        values = {name: course[self._lessons.get(name, 0)].value for name, course in self._courses.items()}
        return EnvironmentParameters(
            self._generation, {name: plain_value(value) for name, value in values.items()}, reset
        )

    def record(self, report: TrainerReport) -> None:
        """Record the returns in a trainer's report."""
        returns = self._returns.get(report.behavior)
        if returns is None:
            return
        counted = report.returns if report.parameter_generation == self._generation else ()
        returns.extend(counted)
        # A report without new episodes must not be judged again, because it would smooth the same mean twice.
        if counted or report.step > self._steps.get(report.behavior, 0):
            self._reported.add(report.behavior)
            self._steps[report.behavior] = report.step

    def advance(self, behaviors: Mapping[str, BehaviorState]) -> EnvironmentParameters | None:
        """Begin the next lesson of each curriculum whose criteria are met by a behaviour with a new report.

        Args:
            behaviors: the behaviours whose progress the criteria may use, keyed by name.

        Returns:
            The message for the environments; None if no lesson has changed.
        """
        passed = {}
        for name, lesson in self._lessons.items():
            criteria = self._courses[name][lesson].completion_criteria
            if criteria is not None and criteria.behavior in self._reported & behaviors.keys():
                reason = self._judge(name, criteria, behaviors[criteria.behavior])
                if reason is not None:
                    passed[name] = reason
        self._reported.clear()
        if not passed:
            return None
        self._generation += 1
        self._smoothed.clear()
        for returns in self._returns.values():
            returns.clear()
        resets = [self._begin_next(name, reason) for name, reason in passed.items()]
        return self.current_parameters(reset=any(resets))

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from, as plain data."""
        return {
            "lessons": dict(self._lessons),
            "generation": self._generation,
            "returns": {behavior: list(returns) for behavior, returns in self._returns.items()},
            "smoothed": dict(self._smoothed),
            "steps": dict(self._steps),
            "news": sorted(self._reported),
        }

    def begin_at(self, lessons: Mapping[str, int]) -> None:
        """Begin at these lessons, counted from 0; all other parameters begin with their first lesson."""
        for name, lesson in lessons.items():
            if name in self._lessons:
                last = len(self._courses[name]) - 1
                if lesson > last:
                    log.warning(
                        "'%s' was at lesson %d but now has only %d lessons; using the last one",
                        name,
                        lesson + 1,
                        last + 1,
                    )
                self._lessons[name] = min(lesson, last)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a checkpoint; parameters missing from the checkpoint begin with their first lesson."""
        self.begin_at(state["lessons"])
        self._generation = int(state["generation"])
        for behavior, returns in state["returns"].items():
            if behavior in self._returns:
                self._returns[behavior].extend(returns)
        self._smoothed = {name: value for name, value in state["smoothed"].items() if name in self._lessons}
        self._steps = dict(state["steps"])
        self._reported = set(state["news"])

    def describe(self) -> list[str]:
        """Describe the current lesson of each curriculum in ML-Agents' wording, which other tools look for."""
        return [self._described(name) for name in self._lessons]

    def _judge(self, name: str, criteria: CompletionCriteria, state: BehaviorState) -> str | None:
        """Return why a parameter's lesson is complete; None if it is not complete."""
        returns, threshold = self._returns[criteria.behavior], criteria.threshold
        if len(returns) < criteria.min_lesson_length:
            log.debug("%s continues: %d of %d episodes", self._named(name), len(returns), criteria.min_lesson_length)
            return None
        match criteria.measure:
            case "progress":
                value, what = state.step / state.settings.max_steps, "progress"
            case "Elo":
                value, what = math.nan if state.elo is None else state.elo, "Elo"
            case _:
                value, what = self._mean_return(name, criteria), "mean reward"
        text = f"{what} {value:.6g}"
        over = f"over {len(returns)} episode{'' if len(returns) == 1 else 's'}"
        if not value > threshold:  # also true for NaN
            log.debug("%s continues: %s is not above %.6g %s", self._named(name), text, threshold, over)
            return None
        return f"{text} > {threshold:.6g} {over}"

    def _mean_return(self, name: str, criteria: CompletionCriteria) -> float:
        """Return the mean return of the lesson's newest episodes, smoothed if configured; NaN if there are none."""
        returns = self._returns[criteria.behavior]
        mean = math.fsum(returns) / len(returns) if returns else math.nan
        if not criteria.signal_smoothing or not math.isfinite(mean):
            return mean
        before = self._smoothed.get(name, mean)
        self._smoothed[name] = SMOOTHING * before + (1 - SMOOTHING) * mean
        return self._smoothed[name]

    def _begin_next(self, name: str, reason: str) -> bool:
        """Begin a parameter's next lesson; return True if the environments must be reset for it."""
        criteria = self._courses[name][self._lessons[name]].completion_criteria
        assert criteria is not None, "the lesson was completed by them"
        self._lessons[name] += 1
        log.info("%s: %s", self._named(name), reason)
        log.info("%s", self._described(name))
        return criteria.require_reset

    def _described(self, name: str) -> str:
        lesson = self._courses[name][self._lessons[name]]
        return f"Parameter '{name}' is in lesson '{lesson.name}' and has value '{_format_value(lesson.value)}'."

    def _named(self, name: str) -> str:
        lesson = self._lessons[name]
        return f"lesson {lesson + 1} '{self._courses[name][lesson].name}' of '{name}'"


def _format_value(value: ParameterValue) -> str:
    """Format a value or sampler as in ML-Agents' messages."""
    match value:
        case UniformSampler(sampler_parameters=drawn):
            return f"Uniform sampler: min={drawn.min_value}, max={drawn.max_value}"
        case GaussianSampler(sampler_parameters=drawn):
            return f"Gaussian sampler: mean={drawn.mean}, stddev={drawn.st_dev}"
        case MultiRangeSampler(sampler_parameters=drawn):
            return f"MultiRangeUniform sampler: intervals={[list(interval) for interval in drawn.intervals]}"
        case ConstantSampler(sampler_parameters=drawn):
            return f"Float: value={drawn.value}"
        case number:
            return f"Float: value={number}"


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
        begun = None if plan.playing or plan.replay_edge else self._curricula.advance(self.run.behaviors)
        if begun is not None:
            self.run.broadcaster.send_to_sources(begun)


def curricula_of(plan: RunPlan) -> Curricula:
    """Return a run's curricula, set to the lessons from which the run continues."""
    curricula = Curricula(plan.config.environment_parameters)
    if plan.resumed is not None and "curricula" in plan.resumed.progress:
        curricula.load_state_dict(plan.resumed.progress["curricula"])
    elif plan.resumes:
        curricula.begin_at(plan.folder.read_training_status().lessons)
    return curricula

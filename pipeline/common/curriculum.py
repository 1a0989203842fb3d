"""Lessons: which value or sampler each environment parameter has at a time, and when the next lesson begins.

Main decides this, since it alone hears of all trainers. It takes in what they report and weighs it from time to time;
what comes of a sampler is drawn in the actors (`stages.environment.parameters`). Pure: no clock, no messages sent.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from config import (
    CompletionCriteria,
    ConstantSampler,
    Curriculum,
    EnvironmentParameter,
    GaussianSampler,
    MultiRangeSampler,
    UniformSampler,
)
from config.environment_parameters import ParameterValue
from stages.environment.parameters import EnvironmentParameters
from stages.trainer.stage import TrainerReport

log = logging.getLogger(__name__)

SMOOTHING = 0.25
"""Weight of the smoothed mean return before, as in ML-Agents."""


@dataclass(frozen=True, slots=True)
class Reached:
    """What a behaviour has reached, as far as criteria measure it beside its episodes."""

    step: int
    max_steps: int
    elo: float | None = None
    """Rating of its newest policy; None without self-play."""


def kept_returns(parameters: Mapping[str, EnvironmentParameter] | None, behavior: str) -> int:
    """Of how many episodes of a behaviour the mean return is taken; 0 where no lesson's end depends on it."""
    lengths = [each.min_lesson_length for each in _criteria(parameters) if each.behavior == behavior]
    return max(1, *lengths) if lengths else 0


def final_parameters(parameters: Mapping[str, EnvironmentParameter] | None) -> EnvironmentParameters:
    """What all lessons lead to: every curriculum at its last lesson."""
    return EnvironmentParameters(
        0, {name: _plain(_course(each)[-1].value) for name, each in (parameters or {}).items()}
    )


class Curricula:
    """All environment parameters of a run, and how far their curricula have come.

    A mean return is that of the newest episodes that *began* in the present lessons: those that were under way when a
    lesson changed, or were reported later, do not count. When any lesson changes, all means begin anew, and so does
    their smoothing: from its first value, not from zero.

    Args:
        parameters: the YAML's `environment_parameters`.
    """

    def __init__(self, parameters: Mapping[str, EnvironmentParameter] | None) -> None:
        self._courses = {name: _course(each) for name, each in (parameters or {}).items()}
        self._lessons = {name: 0 for name, each in (parameters or {}).items() if isinstance(each, Curriculum)}
        self._generation = 0
        self._returns = {
            each.behavior: deque[float](maxlen=kept_returns(parameters, each.behavior))
            for each in _criteria(parameters)
        }
        self._smoothed: dict[str, float] = {}
        self._steps: dict[str, int] = {}
        self._news: set[str] = set()

    def __bool__(self) -> bool:
        """Whether there are any parameters."""
        return bool(self._courses)

    @property
    def lessons(self) -> Mapping[str, int]:
        """The present lesson, from 0, of each parameter that has a curriculum."""
        return dict(self._lessons)

    def state(self, reset: bool = False) -> EnvironmentParameters:
        """What environments are told now."""
        values = {name: course[self._lessons.get(name, 0)].value for name, course in self._courses.items()}
        return EnvironmentParameters(self._generation, {name: _plain(each) for name, each in values.items()}, reset)

    def take(self, report: TrainerReport) -> None:
        """Take in what a trainer reports."""
        returns = self._returns.get(report.behavior)
        if returns is None:
            return
        counted = report.returns if report.parameter_generation == self._generation else ()
        returns.extend(counted)
        # A report that brings nothing new must not be weighed again: it would smooth the same mean twice.
        if counted or report.step > self._steps.get(report.behavior, 0):
            self._news.add(report.behavior)
            self._steps[report.behavior] = report.step

    def weigh(self, reached: Callable[[str], Reached | None]) -> EnvironmentParameters | None:
        """See which lessons are learned, of the criteria about whose behaviours there is news.

        Args:
            reached: gives what a behaviour has reached, None for one that has no trainer.

        Returns:
            What the environments are to be told, if any lesson has changed.
        """
        passed = {}
        for name, lesson in self._lessons.items():
            criteria = self._courses[name][lesson].criteria
            if criteria is not None and criteria.behavior in self._news:
                now = reached(criteria.behavior)
                reason = self._judge(name, criteria, now) if now is not None else None
                if reason is not None:
                    passed[name] = reason
        self._news.clear()
        if not passed:
            return None
        self._generation += 1
        self._smoothed.clear()
        for returns in self._returns.values():
            returns.clear()
        resets = [self._advance(name, reason) for name, reason in passed.items()]
        return self.state(reset=any(resets))

    def state_dict(self) -> dict[str, Any]:
        """Plain data to go on from."""
        return {
            "lessons": dict(self._lessons),
            "generation": self._generation,
            "returns": {behavior: list(returns) for behavior, returns in self._returns.items()},
            "smoothed": dict(self._smoothed),
            "steps": dict(self._steps),
            "news": sorted(self._news),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; parameters that were not known then begin with their first lesson."""
        for name, lesson in state["lessons"].items():
            if name in self._lessons:
                last = len(self._courses[name]) - 1
                if lesson > last:
                    log.warning(
                        "'%s' was at lesson %d and has only %d now: it takes the last", name, lesson + 1, last + 1
                    )
                self._lessons[name] = min(lesson, last)
        self._generation = int(state["generation"])
        for behavior, returns in state["returns"].items():
            if behavior in self._returns:
                self._returns[behavior].extend(returns)
        self._smoothed = {name: value for name, value in state["smoothed"].items() if name in self._lessons}
        self._steps = dict(state["steps"])
        self._news = set(state["news"])

    def describe(self) -> list[str]:
        """Where each curriculum stands, in ML-Agents' words, which other tools look for."""
        return [self._described(name) for name in self._lessons]

    def _judge(self, name: str, criteria: CompletionCriteria, reached: Reached) -> str | None:
        """Why a parameter's lesson is learned, in words; None if it is not."""
        returns, threshold = self._returns[criteria.behavior], criteria.threshold
        if len(returns) < criteria.min_lesson_length:
            log.debug("%s goes on: %d of %d episodes", self._named(name), len(returns), criteria.min_lesson_length)
            return None
        match criteria.measure:
            case "progress":
                measured, what = reached.step / reached.max_steps, "progress"
            case "Elo":
                measured, what = math.nan if reached.elo is None else reached.elo, "Elo"
            case _:
                measured, what = self._mean_return(name, criteria), "mean reward"
        said = f"{what} {measured:.6g}"
        over = f"over {len(returns)} episode{'' if len(returns) == 1 else 's'}"
        if not measured > threshold:  # true of NaN too
            log.debug("%s goes on: %s is not above %.6g %s", self._named(name), said, threshold, over)
            return None
        return f"{said} > {threshold:.6g} {over}"

    def _mean_return(self, name: str, criteria: CompletionCriteria) -> float:
        """The mean return of the lesson's newest episodes, smoothed where that is asked for; NaN without any."""
        returns = self._returns[criteria.behavior]
        mean = math.fsum(returns) / len(returns) if returns else math.nan
        if not criteria.signal_smoothing or not math.isfinite(mean):
            return mean
        before = self._smoothed.get(name, mean)
        self._smoothed[name] = SMOOTHING * before + (1 - SMOOTHING) * mean
        return self._smoothed[name]

    def _advance(self, name: str, reason: str) -> bool:
        """Begin a parameter's next lesson; whether environments have to be reset for it."""
        criteria = self._courses[name][self._lessons[name]].criteria
        assert criteria is not None, "it was judged by it"
        self._lessons[name] += 1
        log.info("%s: %s", self._named(name), reason)
        log.info("%s", self._described(name))
        return criteria.require_reset

    def _described(self, name: str) -> str:
        lesson = self._courses[name][self._lessons[name]]
        return f"Parameter '{name}' is in lesson '{lesson.name}' and has value '{_in_words(lesson.value)}'."

    def _named(self, name: str) -> str:
        lesson = self._lessons[name]
        return f"lesson {lesson + 1} '{self._courses[name][lesson].name}' of '{name}'"


@dataclass(frozen=True, slots=True)
class _Lesson:
    """A lesson; a parameter without a curriculum has one that never ends."""

    name: str
    value: ParameterValue
    criteria: CompletionCriteria | None = None


def _course(parameter: EnvironmentParameter) -> tuple[_Lesson, ...]:
    if not isinstance(parameter, Curriculum):
        return (_Lesson("", parameter),)
    *others, last = parameter.curriculum
    # What stands on the last lesson has no meaning: there is none to go on to.
    lessons = [_Lesson(lesson.name, lesson.value, lesson.completion_criteria) for lesson in others]
    return (*lessons, _Lesson(last.name, last.value))


def _criteria(parameters: Mapping[str, EnvironmentParameter] | None) -> list[CompletionCriteria]:
    courses = [_course(each) for each in (parameters or {}).values()]
    return [lesson.criteria for course in courses for lesson in course if lesson.criteria is not None]


def _plain(value: ParameterValue) -> Any:
    return value if isinstance(value, float) else value.model_dump(mode="json")


def _in_words(value: ParameterValue) -> str:
    """A value as ML-Agents' messages have it."""
    match value:
        case UniformSampler(sampler_parameters=drawn):
            return f"Uniform sampler: min={drawn.min_value}, max={drawn.max_value}"
        case GaussianSampler(sampler_parameters=drawn):
            return f"Gaussian sampler: mean={drawn.mean}, stddev={drawn.st_dev}"
        case MultiRangeSampler(sampler_parameters=drawn):
            return f"MultiRangeUniform sampler: intervals={[list(each) for each in drawn.intervals]}"
        case ConstantSampler(sampler_parameters=drawn):
            return f"Float: value={drawn.value}"
        case number:
            return f"Float: value={number}"

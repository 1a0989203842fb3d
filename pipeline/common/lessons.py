"""Lessons for environment parameters, read from the configuration.

Hosts only read them; main decides when the next lesson begins (`parts.curricula`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.config import CompletionCriteria, Curriculum, EnvironmentParameter
from headrace.config.environment_parameters import Lesson, ParameterValue
from headrace.stages.environments.parameters import EnvironmentParameters


def lessons_of(parameter: EnvironmentParameter) -> tuple[Lesson, ...]:
    """Return a parameter's lessons in order. A parameter without a curriculum has one lesson, which never ends."""
    if not isinstance(parameter, Curriculum):
        return (Lesson.model_construct(name="", value=parameter, completion_criteria=None),)
    *others, last = parameter.curriculum
    return (*others, last.model_copy(update={"completion_criteria": None}))  # criteria without a next lesson


def all_criteria(parameters: Mapping[str, EnvironmentParameter] | None) -> list[CompletionCriteria]:
    """Return the completion criteria of all lessons of all parameters."""
    lessons = [lesson for each in (parameters or {}).values() for lesson in lessons_of(each)]
    return [lesson.completion_criteria for lesson in lessons if lesson.completion_criteria is not None]


def plain_value(value: ParameterValue) -> Any:
    """Return a parameter's value or sampler as plain data."""
    return value if isinstance(value, float) else value.model_dump(mode="json")


def kept_returns(parameters: Mapping[str, EnvironmentParameter] | None, behavior: str) -> int:
    """Return how many episodes a behaviour's return is averaged over; 0 if no lesson depends on the behaviour."""
    lengths = [each.min_lesson_length for each in all_criteria(parameters) if each.behavior == behavior]
    return max(1, *lengths) if lengths else 0


def final_parameters(parameters: Mapping[str, EnvironmentParameter] | None) -> EnvironmentParameters:
    """Return the environment parameters with every curriculum at its last lesson."""
    return EnvironmentParameters(
        0, {name: plain_value(lessons_of(each)[-1].value) for name, each in (parameters or {}).items()}
    )

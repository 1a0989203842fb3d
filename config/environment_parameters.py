"""The `environment_parameters` section: numbers, samplers and curricula that supply values to the environment.

This module only declares them: `headrace.pipeline.parts.curricula` advances lessons, and
`headrace.stages.environments.parameters` draws values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from headrace.config.errors import Finding
from headrace.config.fields import Flag, Float, Int, Settings, Text, as_tuple

_SEED = "Seed of the sampler; -1: derived from the run's seed."
_ELO = "Elo"


class ConstantParameters(Settings):
    """`sampler_parameters` of a `constant` sampler."""

    value: Float = Field(0.0, description="The value.")
    seed: Int = Field(-1, ge=-1, description=_SEED)


class UniformParameters(Settings):
    """`sampler_parameters` of a `uniform` sampler."""

    min_value: Float = Field(0.0, description="Minimum value.")
    max_value: Float = Field(1.0, description="Maximum value; at least `min_value`.")
    seed: Int = Field(-1, ge=-1, description=_SEED)

    def _mistakes(self) -> Iterator[Finding]:
        if self.min_value > self.max_value:
            message = f"{self.min_value:g} is greater than max_value ({self.max_value:g}); swap the two"
            yield Finding(("min_value",), message, (("max_value",),))


class GaussianParameters(Settings):
    """`sampler_parameters` of a `gaussian` sampler."""

    mean: Float = Field(1.0, description="Mean.")
    st_dev: Float = Field(1.0, ge=0, description="Standard deviation.")
    seed: Int = Field(-1, ge=-1, description=_SEED)


def _interval(value: object) -> object:
    if isinstance(value, list | tuple) and len(value) != 2:
        raise ValueError(f"has {len(value)} numbers; expected a pair [min, max]")
    return as_tuple(value)


def _in_order(value: tuple[float, float]) -> tuple[float, float]:
    least, greatest = value
    if least > greatest:
        raise ValueError(f"{least:g} is greater than {greatest:g}; swap the two")
    return value


class MultiRangeParameters(Settings):
    """`sampler_parameters` of a `multirangeuniform` sampler."""

    intervals: Annotated[
        tuple[Annotated[tuple[Float, Float], BeforeValidator(_interval), AfterValidator(_in_order)], ...],
        BeforeValidator(as_tuple),
    ] = Field(((0.0, 1.0),), min_length=1, description="Intervals [min, max] to draw values from.")
    seed: Int = Field(-1, ge=-1, description=_SEED)


class ConstantSampler(Settings):
    """A sampler that always returns the same value."""

    sampler_type: Literal["constant"] = Field(description="`constant`.")
    sampler_parameters: ConstantParameters = Field(description="The sampler's parameters.")


class UniformSampler(Settings):
    """A sampler of values distributed uniformly over a range."""

    sampler_type: Literal["uniform"] = Field(description="`uniform`.")
    sampler_parameters: UniformParameters = Field(description="The sampler's parameters.")


class GaussianSampler(Settings):
    """A sampler of values distributed normally around a mean."""

    sampler_type: Literal["gaussian"] = Field(description="`gaussian`.")
    sampler_parameters: GaussianParameters = Field(description="The sampler's parameters.")


class MultiRangeSampler(Settings):
    """A sampler of values distributed uniformly over several ranges."""

    sampler_type: Literal["multirangeuniform"] = Field(description="`multirangeuniform`.")
    sampler_parameters: MultiRangeParameters = Field(description="The sampler's parameters.")


Sampler: TypeAlias = Annotated[
    ConstantSampler | UniformSampler | GaussianSampler | MultiRangeSampler, Discriminator("sampler_type")
]


def _measure(value: object) -> object:
    """Read `elo` and `ELO` as `Elo`."""
    return _ELO if isinstance(value, str) and value.lower() == _ELO.lower() else value


class CompletionCriteria(Settings):
    """The condition under which a lesson ends."""

    behavior: Text = Field(description="Name of the behaviour to measure.")
    measure: Annotated[Literal["reward", "progress", "Elo"], BeforeValidator(_measure)] = Field(
        "reward",
        description="`reward`: mean return of the lesson's newest episodes; `progress`: the behaviour's step / "
        "`max_steps`; `Elo`: the rating of its newest policy, with self-play.",
    )
    min_lesson_length: Int = Field(
        0,
        ge=0,
        description="Minimum number of episodes in the lesson. The mean return covers this many episodes (at least "
        "1); if several criteria name the behaviour, the largest number counts.",
    )
    signal_smoothing: Flag = Field(
        True,
        description="For `reward`: smooth the mean return, with a weight of one quarter for its previous value in the "
        "lesson.",
    )
    threshold: Float = Field(
        0.0,
        description="Value to exceed; it may be negative, except with `progress`, for which it must be from 0 to 1.",
    )
    require_reset: Flag = Field(
        False,
        description="Reset all environments when the lesson changes; otherwise each one uses the new value from its "
        "next episode.",
    )

    def _mistakes(self) -> Iterator[Finding]:
        if self.measure == "progress" and not 0 <= self.threshold <= 1:
            message = (
                f"{self.threshold:g} is not a fraction of max_steps; expected a number from 0 to 1 for 'measure: "
                "progress'"
            )
            yield Finding(("threshold",), message, (("measure",),))


def _number_or_sampler(value: Any) -> str:
    # Tags contain a space, so that they can't be confused with keys in the paths of pydantic's errors.
    return "a sampler" if isinstance(value, dict | Settings) else "a number"


ParameterValue: TypeAlias = Annotated[
    Annotated[Float, Tag("a number")] | Annotated[Sampler, Tag("a sampler")], Discriminator(_number_or_sampler)
]
"""A parameter's value during a lesson: a number, or a sampler."""


class Lesson(Settings):
    """One lesson of a curriculum."""

    name: Text = Field(min_length=1, description="The lesson's name in the console.")
    value: ParameterValue = Field(description="The parameter's value during the lesson: a number or a sampler.")
    completion_criteria: CompletionCriteria | None = Field(
        None, description="When to move to the next lesson; required in every lesson except the last."
    )


class Curriculum(Settings):
    """A sequence of lessons."""

    curriculum: Annotated[tuple[Lesson, ...], BeforeValidator(as_tuple)] = Field(
        min_length=1, description="The lessons, in order."
    )

    def _mistakes(self) -> Iterator[Finding]:
        for index, lesson in enumerate(self.curriculum[:-1]):
            if lesson.completion_criteria is None:
                message = (
                    f"lesson '{lesson.name}' has no completion_criteria (behavior, measure, threshold), which every "
                    "lesson except the last needs"
                )
                involved = (("curriculum", index, "completion_criteria"),)
                yield Finding(("curriculum", index), message, involved)


def _form(value: Any) -> str:
    if isinstance(value, Curriculum) or (isinstance(value, dict) and "curriculum" in value):
        return "a curriculum"
    return _number_or_sampler(value)


EnvironmentParameter: TypeAlias = Annotated[
    Annotated[Float, Tag("a number")]
    | Annotated[Sampler, Tag("a sampler")]
    | Annotated[Curriculum, Tag("a curriculum")],
    Discriminator(_form),
]
"""A parameter's setting: a number, a sampler, or a curriculum."""

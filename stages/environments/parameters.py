"""Draws environment parameters for each episode of each instance, and reads their lessons from the configuration.

Main decides when the next lesson begins, and therefore which value or sampler each parameter has
(`pipeline/parts/curricula.py`), and sends all of them to the actors (`EnvironmentParameters`). This module draws from
the samplers in each actor, so values differ between instances and episodes.

A `SupportsParameters` environment group receives an `EpisodeParameters` once, and gets values from it whenever episodes
begin. An adapter for single environments (Gymnasium, PettingZoo) calls `options`, and passes the result to the
environment's `reset`. A group whose instances draw values themselves (Unity, over its side channel) sends `values`
whenever `generation` has changed, and reports the generation at each ended episode's start (`AgentSteps.parameters`).
"""

from __future__ import annotations

import functools
import logging
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from headrace.config import (
    CompletionCriteria,
    ConstantSampler,
    Curriculum,
    EnvironmentParameter,
    GaussianSampler,
    MultiRangeSampler,
    UniformSampler,
)
from headrace.config.environment_parameters import Lesson, ParameterValue
from headrace.stages.environments.protocol import EnvironmentGroup

Floats = NDArray[np.float64]
Instances = NDArray[np.integer] | list[int]


@dataclass(frozen=True, slots=True)
class EnvironmentParameters:
    """A message from main to the actors. It holds all environment parameters from now on, not just the changed ones."""

    generation: int
    """Increases with every change; main uses it to attribute episodes' returns to lessons."""
    parameters: Mapping[str, Any]
    """Each parameter's value, keyed by name: a number, or a sampler in the YAML's form."""
    reset: bool = False
    """True to reset all environments; otherwise each instance uses the new values when its next episode begins."""


# Values are drawn when an episode begins: a setter would change episodes that are being played (docs/decisions/051).
class EpisodeParameters:
    """Draws each episode's parameters as the episode begins.

    The seed, the samplers' own seeds and the order of calls determine the values; a sampler with its own seed draws the
    same values whatever the run's seed is.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.values: Mapping[str, ParameterValue] = {}
        """The current value or sampler of each parameter."""
        self.begun: NDArray[np.int32] = np.zeros(0, np.int32)
        """[instances] generation of the parameters at the start of each running episode. Changes replace the array
        instead of modifying it."""
        self._seed = 0
        self._spawn_key: tuple[int, ...] = ()
        self._random: dict[tuple[str, int], np.random.Generator] = {}

    def receive(self, message: EnvironmentParameters) -> None:
        """Use a message's parameters for all later episodes."""
        self.generation = message.generation
        self.values = _reader().validate_python(dict(message.parameters))

    def set_instances(self, num_envs: int) -> None:
        """Set the number of instances; their running episodes count as started with the current generation."""
        self.begun = np.full(num_envs, self.generation, np.int32)

    def reseed(self, seed: int, *spawn_key: int) -> None:
        """Seed all samplers.

        Args:
            seed: the seed for samplers without their own seed.
            spawn_key: makes the values differ between actors and parts of the run, even for samplers with their own
                seed.
        """
        self._seed, self._spawn_key = seed, spawn_key
        self._random.clear()

    def draw(self, env_ids: Instances) -> dict[str, Floats]:
        """Draw the parameters of episodes that begin now.

        Args:
            env_ids: [k] instances whose episodes begin.

        Returns:
            The values [k], keyed by name.
        """
        self.begin(env_ids)
        count = len(env_ids)
        return {name: sample(value, self._generator(name, value), count) for name, value in self.values.items()}

    def options(self, env_id: int) -> dict[str, float]:
        """Draw one instance's parameters, as options for `reset`."""
        return {name: float(values[0]) for name, values in self.draw([env_id]).items()}

    def begin(self, env_ids: Instances) -> None:
        """Record that episodes begin in instances [k], for environments that draw values themselves."""
        if (self.begun[env_ids] != self.generation).any():
            self.begun = self.begun.copy()
            self.begun[env_ids] = self.generation

    def _generator(self, name: str, value: ParameterValue) -> np.random.Generator:
        seed = -1 if isinstance(value, float) else value.sampler_parameters.seed
        generator = self._random.get((name, seed))
        if generator is None:
            entropy = [self._seed if seed < 0 else seed, zlib.crc32(name.encode())]
            generator = np.random.default_rng([*entropy, *(part + 1 for part in self._spawn_key)])
            self._random[name, seed] = generator
        return generator


@runtime_checkable
class SupportsParameters(Protocol):
    """An environment group that uses environment parameters."""

    def set_parameters(self, parameters: EpisodeParameters) -> None:
        """Receive the source of parameters, once, before the first reset.

        The group calls `parameters.draw(env_ids)` whenever episodes begin.
        """
        ...


def connect_parameters(
    group: EnvironmentGroup, parameters: EpisodeParameters, log: logging.Logger | None = None
) -> None:
    """Pass an environment group the parameters of its episodes, if there are any.

    Args:
        group: the group, before its first reset.
        parameters: the source of the group's parameters.
        log: receives a warning if the group takes no parameters; None for no warning.
    """
    parameters.set_instances(group.num_envs)
    if not parameters.values:
        return
    if isinstance(group, SupportsParameters):
        group.set_parameters(parameters)
    elif log is not None:
        log.warning(
            "environment_parameters: %s does not accept parameters, so they have no effect; add a method "
            "set_parameters(self, parameters) to its class, and call parameters.draw(env_ids) at the start of "
            "episodes (see docs/curricula.md)",
            type(group).__name__,
        )


def sample(value: ParameterValue, random: np.random.Generator, count: int) -> Floats:
    """Draw [count] values of a parameter."""
    match value:
        case ConstantSampler():
            return np.full(count, value.sampler_parameters.value)
        case UniformSampler():
            return random.uniform(value.sampler_parameters.min_value, value.sampler_parameters.max_value, count)
        case GaussianSampler():
            return random.normal(value.sampler_parameters.mean, value.sampler_parameters.st_dev, count)
        case MultiRangeSampler():
            return _from_ranges(np.array(value.sampler_parameters.intervals), random, count)
        case _:
            return np.full(count, value)


def _from_ranges(intervals: Floats, random: np.random.Generator, count: int) -> Floats:
    """Draw [count] values uniformly from intervals [i, 2].

    If all intervals are points, the points are equally likely.
    """
    ends = (intervals[:, 1] - intervals[:, 0]).cumsum()
    if not ends[-1]:
        points: Floats = intervals[random.integers(len(intervals), size=count), 0]
        return points
    along = random.random(count) * ends[-1]
    which = np.minimum(ends.searchsorted(along, side="right"), len(ends) - 1)  # rounding may reach the last end point
    least, greatest = intervals[which].T
    values: Floats = np.clip(greatest - (ends[which] - along), least, greatest)
    return values


@functools.cache
def _reader() -> TypeAdapter[dict[str, ParameterValue]]:
    return TypeAdapter(dict[str, ParameterValue])


def lessons_of(parameter: EnvironmentParameter) -> tuple[Lesson, ...]:
    """Return a parameter's lessons in order. A parameter without a curriculum has one lesson, which never ends."""
    if not isinstance(parameter, Curriculum):
        return (Lesson.model_construct(name="", value=parameter, completion_criteria=None),)
    *others, last = parameter.curriculum
    return (*others, last.model_copy(update={"completion_criteria": None}))  # criteria without a next lesson


def all_criteria(parameters: Mapping[str, EnvironmentParameter] | None) -> list[CompletionCriteria]:
    """Return the completion criteria of all lessons of all parameters."""
    lessons = [lesson for parameter in (parameters or {}).values() for lesson in lessons_of(parameter)]
    return [lesson.completion_criteria for lesson in lessons if lesson.completion_criteria is not None]


def plain_value(value: ParameterValue) -> Any:
    """Return a parameter's value or sampler as plain data."""
    return value if isinstance(value, float) else value.model_dump(mode="json")


def kept_returns(parameters: Mapping[str, EnvironmentParameter] | None, behavior: str) -> int:
    """Return how many episodes a behaviour's return is averaged over; 0 if no lesson depends on the behaviour."""
    lengths = [criterion.min_lesson_length for criterion in all_criteria(parameters) if criterion.behavior == behavior]
    return max(1, *lengths) if lengths else 0


def final_parameters(parameters: Mapping[str, EnvironmentParameter] | None) -> EnvironmentParameters:
    """Return the environment parameters with every curriculum at its last lesson."""
    return EnvironmentParameters(
        0, {name: plain_value(lessons_of(parameter)[-1].value) for name, parameter in (parameters or {}).items()}
    )

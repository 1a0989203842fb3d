"""Environment parameters as environments hear of them: values that are drawn anew for each episode of each instance.

Which value or sampler a parameter has at a time, main decides (`pipeline.main.curricula`) and tells the actors in
full (`EnvironmentParameters`). What comes of a sampler is decided here, beside the environments, so that it differs
from instance to instance and from episode to episode.

An environment group that is `Parameterised` is given an `EpisodeParameters` once, and asks it whenever episodes begin.
An adapter of environments one by one (Gymnasium, PettingZoo) asks with `options`, and passes the answer to the
environment's `reset`. One whose instances draw values by themselves (Unity, over its side channel) sends `values` on
whenever `generation` has changed, and says of each ended episode under which it began (`AgentSteps.parameters`).
"""

from __future__ import annotations

import difflib
import functools
import logging
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from config import ConstantSampler, GaussianSampler, MultiRangeSampler, UniformSampler
from config.environment_parameters import ParameterValue
from stages.environment.protocol import EnvironmentGroup
from stages.errors import StageError

Floats = NDArray[np.float64]
Instances = NDArray[np.integer] | list[int]


@dataclass(frozen=True, slots=True)
class EnvironmentParameters:
    """What environments are told from now on: the whole state, never a difference. Goes from main to the actors."""

    generation: int
    """Rises with every change; the returns of episodes are told apart by it."""
    parameters: Mapping[str, Any]
    """Each a number, or a sampler as the YAML writes it."""
    reset: bool = False
    """Whether all environments begin anew; else each instance takes the new values with its next episode."""


class EpisodeParameters:
    """Gives the parameters of episodes that begin.

    The values follow from the seed, the samplers' own seeds and the order of the calls; a sampler with a seed of its
    own gives the same values in runs of other seeds.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.values: Mapping[str, ParameterValue] = {}
        """The current value or sampler of each parameter."""
        self.begun: NDArray[np.int32] = np.zeros(0, np.int32)
        """[instances] generation under which the running episode began. Replaced at a change, never written over."""
        self._seed = 0
        self._stretch: tuple[int, ...] = ()
        self._random: dict[tuple[str, int], np.random.Generator] = {}

    def __bool__(self) -> bool:
        """Whether there are any parameters."""
        return bool(self.values)

    def take(self, message: EnvironmentParameters) -> None:
        """Use these from the next episode on."""
        self.generation = message.generation
        self.values = _reader().validate_python(dict(message.parameters))

    def open(self, num_envs: int) -> None:
        """There are so many instances, none of which has begun an episode under an earlier generation."""
        self.begun = np.full(num_envs, self.generation, np.int32)

    def begin_anew(self, seed: int, *stretch: int) -> None:
        """Start chance anew.

        Args:
            seed: of samplers that have none of their own.
            stretch: sets this actor and this part of the run apart; for samplers with a seed of their own too.
        """
        self._seed, self._stretch = seed, stretch
        self._random.clear()

    def draw(self, env_ids: Instances) -> dict[str, Floats]:
        """The parameters of the episodes that begin now in some instances.

        Args:
            env_ids: [k] these instances.

        Returns:
            Values [k] by name.
        """
        self.begin(env_ids)
        count = len(env_ids)
        return {name: sample(value, self._generator(name, value), count) for name, value in self.values.items()}

    def options(self, env_id: int) -> dict[str, float]:
        """As `draw`, for one instance: what its `reset` is given as options."""
        return {name: float(values[0]) for name, values in self.draw([env_id]).items()}

    def begin(self, env_ids: Instances) -> None:
        """Episodes begin in these instances [k] under the current generation: for who draws no values here."""
        if (self.begun[env_ids] != self.generation).any():
            self.begun = self.begun.copy()
            self.begun[env_ids] = self.generation

    def _generator(self, name: str, value: ParameterValue) -> np.random.Generator:
        seed = -1 if isinstance(value, float) else value.sampler_parameters.seed
        found = self._random.get((name, seed))
        if found is None:
            entropy = [self._seed if seed < 0 else seed, zlib.crc32(name.encode())]
            found = np.random.default_rng([*entropy, *(part + 1 for part in self._stretch)])
            self._random[name, seed] = found
        return found


@runtime_checkable
class Parameterised(Protocol):
    """An environment group that takes parameters."""

    def set_parameters(self, parameters: EpisodeParameters) -> None:
        """Ask this for the parameters of episodes that begin, each time some do: `parameters.draw(env_ids)`.

        Called once, before the first reset.
        """
        ...


def tell(group: EnvironmentGroup, parameters: EpisodeParameters, log: logging.Logger | None = None) -> None:
    """Join an environment group to the parameters of its episodes, if there are any.

    Args:
        group: the group, before its first reset.
        parameters: what it will ask.
        log: where to say that it can't take them; None to say nothing.
    """
    parameters.open(group.num_envs)
    if not parameters:
        return
    if isinstance(group, Parameterised):
        group.set_parameters(parameters)
    elif log is not None:
        log.warning(
            "environment_parameters: %s can't take parameters, so they have no effect; give it a method "
            "set_parameters(self, parameters), and let it ask parameters.draw(env_ids) when episodes begin "
            "(see docs/curricula.md)",
            type(group).__name__,
        )


def check_known(parameters: EpisodeParameters, known: Mapping[str, str], name: str) -> None:
    """See that an environment that knows what it can be told is told nothing else.

    Args:
        parameters: what it is told.
        known: what each parameter is, by name.
        name: what messages call the environment.

    Raises:
        StageError: if a parameter is not known.
    """
    for parameter in parameters.values:
        if parameter not in known:
            close = difflib.get_close_matches(parameter, known, n=1)
            told = "; ".join(f"{each}: {meaning}" for each, meaning in known.items())
            hint = f"did you mean '{close[0]}'? It takes" if close else "it takes"
            raise StageError(f"environment_parameters.{parameter}: {name} takes no such parameter; {hint} {told}")


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
    """Values of intervals [i, 2]: any point of them as likely as any other; of mere points, each point."""
    ends = (intervals[:, 1] - intervals[:, 0]).cumsum()
    if not ends[-1]:
        points: Floats = intervals[random.integers(len(intervals), size=count), 0]
        return points
    along = random.random(count) * ends[-1]
    which = np.minimum(ends.searchsorted(along, side="right"), len(ends) - 1)  # rounding may reach the last end
    least, greatest = intervals[which].T
    values: Floats = np.clip(greatest - (ends[which] - along), least, greatest)
    return values


@functools.cache
def _reader() -> TypeAdapter[dict[str, ParameterValue]]:
    return TypeAdapter(dict[str, ParameterValue])

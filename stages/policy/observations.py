"""From observations as environments give them to what networks take in: one matrix of vectors, and the rest.

The only place where observation dtypes are cast. All vectors stand side by side in one float32 matrix (which is what
the normaliser works on); images and sets keep their dtype and go to encoders of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from config.observation_kinds import OBSERVATION_KINDS
from queues.columns import Column
from queues.messages import Array
from queues.specs import BehaviorSpec, ObservationSpec
from stages.errors import StageError

VECTORS = "vectors"
"""Name of the column of all vectors side by side."""


@dataclass(frozen=True, slots=True)
class EncodedObservations:
    """Observations of n agents (or rows) as networks take them in, not normalised."""

    vectors: NDArray[np.float32]
    """[n, V]"""
    others: tuple[Array, ...] = ()
    """[n, *shape] of each image and set, in the order of the spec, in its own dtype."""


class ObservationLayout:
    """Which observations of a behaviour go where.

    Attributes:
        vector_size: V, the width of all vectors side by side.
        vectors: (index in the spec, slice of the V columns) of each vector.
        others: indices in the spec of images and sets, rising.
        goals: slices of the V columns that tell the goal.
        plain: whether there are vectors only, and none tells a goal: then a plain perceptron will do.

    Raises:
        StageError: if there is nothing to observe, or an observation's rank or dtype is none that can be learned from.
    """

    def __init__(self, spec: BehaviorSpec) -> None:
        vectors, others, goals, at = [], [], [], 0
        for index, observation in enumerate(spec.observations):
            _check(spec, observation)
            if not OBSERVATION_KINDS[observation.kind].flat:
                others.append(index)
                continue
            columns = slice(at, at + observation.size)
            vectors.append((index, columns))
            if observation.goal:
                goals.append(columns)
            at += observation.size
        self.vector_size = at
        self.vectors = tuple(vectors)
        self.others = tuple(others)
        self.goals = tuple(goals)
        self.plain = not others and not goals
        self._specs = spec.observations
        if not vectors and not others:
            raise StageError(f"{spec.behavior_id}: a policy needs at least one observation, the spec has none")

    def encode(self, observations: Sequence[Array]) -> EncodedObservations:
        """Of one array [n, *shape] per observation: the vectors in a new matrix, the rest as it is."""
        matrix = np.empty((len(observations[0]), self.vector_size), np.float32)
        self.write_vectors(observations, matrix)
        return EncodedObservations(matrix, tuple(observations[index] for index in self.others))

    def write_vectors(self, observations: Sequence[Array], out: NDArray[np.float32]) -> None:
        """Write the vectors of n observations into `out` [n, V]."""
        for index, columns in self.vectors:
            observation = observations[index]
            out[:, columns] = observation.reshape(len(observation), columns.stop - columns.start)

    def encode_columns(self, columns: Mapping[str, Array], prefix: str = "obs_") -> EncodedObservations:
        """The same of the columns `obs_0`, `obs_1`, … (or `next_obs_0`, …) of a batch."""
        return self.encode([columns[f"{prefix}{index}"] for index in range(len(self._specs))])

    def columns(self, prefix: str = "") -> tuple[Column, ...]:
        """How a buffer keeps encoded observations: `vectors` [V], and `obs_<index>` of images and sets."""
        return (
            Column(f"{prefix}{VECTORS}", "float32", (self.vector_size,)),
            *(Column(f"{prefix}obs_{i}", self._specs[i].dtype, self._specs[i].shape) for i in self.others),
        )

    def as_columns(self, encoded: EncodedObservations, prefix: str = "") -> dict[str, Array]:
        """Encoded observations by the names of `columns`."""
        return {column.name: array for column, array in zip(self.columns(prefix), _arrays(encoded), strict=True)}

    def from_columns(self, columns: Mapping[str, Array], prefix: str = "") -> EncodedObservations:
        """The inverse of `as_columns`."""
        vectors, *others = (columns[column.name] for column in self.columns(prefix))
        return EncodedObservations(vectors, tuple(others))


def _arrays(encoded: EncodedObservations) -> tuple[Array, ...]:
    return (encoded.vectors, *encoded.others)


def _check(spec: BehaviorSpec, observation: ObservationSpec) -> None:
    if observation.kind not in OBSERVATION_KINDS:
        kinds = sorted(OBSERVATION_KINDS.values(), key=lambda kind: kind.ranks)
        *others, last = [kind.description for kind in kinds]
        raise StageError(
            f"{spec.behavior_id}: observation {observation.name!r} has shape {observation.shape}: expected "
            f"{', '.join(others)} or {last}; reshape it in the environment"
        )
    if np.dtype(observation.dtype).kind not in "biuf":
        raise StageError(
            f"{spec.behavior_id}: observation {observation.name!r} has dtype {observation.dtype!r}, "
            "expected numbers or booleans"
        )

"""Conversion of environment observations to network inputs.

Only this module casts observation dtypes. All vectors are concatenated into one matrix, which the normaliser works on;
images and sets keep their dtype and go to separate encoders. Networks take float32. The matrix is float64 if any vector
is, so values are normalised before they are rounded: in float32, a Unix timestamp has a resolution of 128 seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config.observation_kinds import OBSERVATION_KINDS
from headrace.queues.columns import Column
from headrace.queues.messages import Array
from headrace.queues.specs import BehaviorSpec, ObservationSpec
from headrace.stages.errors import StageError

VECTORS = "vectors"
"""Name of the column that holds all vectors, concatenated."""


@dataclass(frozen=True, slots=True)
class EncodedObservations:
    """The observations of n agents (or rows) as network inputs, before normalisation."""

    vectors: Array
    """[n, V] all vectors: float64 if `ObservationLayout.exact`, otherwise float32."""
    others: tuple[Array, ...] = ()
    """One array [n, *shape] per image and set, in spec order, each in its own dtype."""

    def rows(self, which: NDArray[Any] | slice) -> EncodedObservations:
        """Return the rows that `which` selects: views for a slice, otherwise copies."""
        return EncodedObservations(self.vectors[which], tuple(map(itemgetter(which), self.others)))


class ObservationLayout:
    """How a behaviour's observations map to its network's inputs.

    Attributes:
        vector_size: V, the combined width of all vectors.
        vectors: (index in the spec, slice of the V columns) for each vector.
        others: indices in the spec of images and sets, ascending.
        goals: slices of the V columns that hold a goal.
        plain: true if all observations are vectors and none is a goal, so a plain perceptron is enough.
        exact: true if any vector is float64; all vectors then stay float64 until they are normalised.

    Raises:
        StageError: if there is no observation, or one has a rank or dtype that networks can't take.
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
        self.exact = any(spec.observations[index].dtype == "float64" for index, _ in vectors)
        self._dtype = "float64" if self.exact else "float32"
        self._specs = spec.observations
        if not vectors and not others:
            raise StageError(f"{spec.behavior_id}: a policy needs at least one observation, but the spec has none")

    def encode(self, observations: Sequence[Array], out: Array | None = None) -> EncodedObservations:
        """Encode one array [n, *shape] per observation: copy vectors to a matrix, and pass all others through.

        The matrix is `out` [n, V] if given, otherwise a new one.
        """
        n = len(observations[0])
        matrix = np.empty((n, self.vector_size), self._dtype) if out is None else out
        for index, columns in self.vectors:
            matrix[:, columns] = observations[index].reshape(n, columns.stop - columns.start)
        return EncodedObservations(matrix, tuple([observations[index] for index in self.others]))

    def decode(self, encoded: EncodedObservations) -> list[Array]:
        """Invert `encode`: return one array [n, *shape] per observation, in the observation's own dtype."""
        arrays: dict[int, Array] = dict(zip(self.others, encoded.others, strict=True))
        for index, columns in self.vectors:
            spec = self._specs[index]
            arrays[index] = encoded.vectors[:, columns].reshape(len(encoded.vectors), *spec.shape).astype(spec.dtype)
        return [arrays[index] for index in range(len(self._specs))]

    def encode_columns(self, columns: Mapping[str, Array], prefix: str = "obs_") -> EncodedObservations:
        """Encode a batch's columns `obs_0`, `obs_1`, … (or `next_obs_0`, …)."""
        return self.encode([columns[f"{prefix}{index}"] for index in range(len(self._specs))])

    def columns(self, prefix: str = "") -> tuple[Column, ...]:
        """Return the columns that a buffer uses for encoded observations: `vectors` [V], and `obs_<index>`."""
        return (
            Column(f"{prefix}{VECTORS}", self._dtype, (self.vector_size,)),
            *(Column(f"{prefix}obs_{i}", self._specs[i].dtype, self._specs[i].shape) for i in self.others),
        )

    def as_columns(self, encoded: EncodedObservations, prefix: str = "") -> dict[str, Array]:
        """Return encoded observations as a dict whose keys are the column names from `columns`."""
        arrays = (encoded.vectors, *encoded.others)
        return {column.name: array for column, array in zip(self.columns(prefix), arrays, strict=True)}

    def from_columns(self, columns: Mapping[str, Array], prefix: str = "") -> EncodedObservations:
        """Invert `as_columns`."""
        vectors, *others = (columns[column.name] for column in self.columns(prefix))
        return EncodedObservations(vectors, tuple(others))


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
            f"{spec.behavior_id}: observation {observation.name!r} has dtype {observation.dtype!r}; "
            "expected numbers or booleans"
        )


NORMALIZED_LIMIT = 5.0
LEAST_DEVIATION = 1e-10
"""A column with a standard deviation of at most this value, or within float64 rounding of the mean, counts as
constant."""
_LAST_DIGITS = 1e-13


class Normalizer:
    """The running mean and variance of vectors of length `size`, in float64.

    Before the first batch, vectors do not change. A normaliser can also continue from the state of ML-Agents'
    normaliser, which counts an imaginary first observation of 0.
    """

    def __init__(self, size: int) -> None:
        self.steps = 0
        """Number of observations so far."""
        self.mean: NDArray[np.float64] = np.zeros(size)
        self.squares: NDArray[np.float64] = np.zeros(size)
        """Sum of squared deviations from the mean."""

    def update(self, rows: Array) -> None:
        """Add n observations [n, size] to the running statistics.

        Combines the means and squared deviations of two sets, without losing precision if the mean is far from 0.
        Source: Chan, Golub & LeVeque (1979), "Updating Formulae and a Pairwise Algorithm for Computing Sample
        Variances".
        """
        n = len(rows)
        if n == 0:
            return
        first = rows[0].astype(np.float64)
        batch = rows.astype(np.float64)
        batch -= first  # a constant column becomes 0, so rounding adds no variance
        batch_mean = batch.mean(axis=0)
        batch -= batch_mean
        total = self.steps + n
        shift = (first - self.mean) + batch_mean
        self.squares += np.einsum("ij,ij->j", batch, batch) + np.square(shift) * (self.steps * n / total)
        self.mean += shift * (n / total)
        self.steps = total

    def tensors(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return (mean, 1 / standard deviation), each [size], for actors; the second is 1 for constant observations."""
        deviation = np.sqrt(self.squares / max(self.steps, 1))
        varies = deviation > np.maximum(LEAST_DEVIATION, _LAST_DIGITS * np.abs(self.mean))
        inverse_std = np.divide(1.0, deviation, out=np.ones_like(deviation), where=varies)
        return self.mean.astype(np.float32), inverse_std.astype(np.float32)

    @property
    def mean_rest(self) -> NDArray[np.float32]:
        """The mean's float32 rounding error [size]; added to the mean from `tensors`, it gives 48 bits of precision."""
        return (self.mean - self.mean.astype(np.float32)).astype(np.float32)

    def apply(self, rows: Array) -> NDArray[np.float32]:
        """Return normalised observations [n, size], as a new array."""
        mean, inverse_std = self.tensors()
        out = np.empty(rows.shape, np.float32)
        normalize(rows, mean if rows.dtype == np.float32 else self.mean, inverse_std, out)
        return out

    def state_dict(self) -> dict[str, Any]:
        """Return the state, as plain values and copied arrays."""
        return {"steps": self.steps, "mean": self.mean.copy(), "squares": self.squares.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`.

        Raises:
            StageError: if the state's size differs.
        """
        for name in ("mean", "squares"):
            got = np.shape(state[name])
            if got != self.mean.shape:
                raise StageError(f"normalizer.{name}: expected shape {self.mean.shape}, got {got}")
        self.steps = int(state["steps"])
        self.mean = np.array(state["mean"], np.float64)
        self.squares = np.array(state["squares"], np.float64)


def normalize(rows: Array, mean: Array, inverse_std: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Write the normalised `rows` [n, size] into `out`, which may be `rows` itself.

    The subtraction runs in the wider of the two dtypes, and the result is rounded once; pass a float64 `mean` for
    float64 rows.
    """
    np.subtract(rows, mean, out=out, casting="same_kind")
    np.multiply(out, inverse_std, out=out)
    np.maximum(out, -NORMALIZED_LIMIT, out=out)  # for few rows, these two together take a quarter of np.clip's time
    np.minimum(out, NORMALIZED_LIMIT, out=out)

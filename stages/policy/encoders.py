"""From observations as environments give them to the one float32 matrix that networks take in.

The only place where observation dtypes are cast. One encoder per observation, chosen by its spec: encoders of
other ranks (images, variable-length sets) join here, and in `network` where they have parameters.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from queues.messages import Array
from queues.specs import BehaviorSpec, ObservationSpec
from stages.errors import StageError


class VectorEncoder:
    """Scalars and vectors: cast to float32, otherwise unchanged."""

    def __init__(self, spec: ObservationSpec) -> None:
        self.size = spec.size

    def write(self, observation: Array, out: NDArray[np.float32]) -> None:
        """Write n observations [n, *shape] of any number or bool dtype into `out` [n, size]."""
        out[...] = observation.reshape(len(observation), self.size)


def encoder_for(spec: ObservationSpec) -> VectorEncoder:
    """The encoder of one observation.

    Raises:
        StageError: if there is none for its rank or dtype.
    """
    if len(spec.shape) > 1:
        raise StageError(
            f"observation {spec.name!r} has shape {spec.shape}: only vector observations (rank 1) can be "
            "learned from so far; flatten it in the environment, as gymnasium's FlattenObservation does"
        )
    if np.dtype(spec.dtype).kind not in "biuf":
        raise StageError(f"observation {spec.name!r} has dtype {spec.dtype!r}, expected numbers or booleans")
    return VectorEncoder(spec)


class ObservationEncoder:
    """All observations of a behaviour side by side in one row.

    Raises:
        StageError: if an observation has no encoder, or there is nothing to observe.
    """

    def __init__(self, spec: BehaviorSpec) -> None:
        self._encoders = [encoder_for(observation) for observation in spec.observations]
        self.size = sum(encoder.size for encoder in self._encoders)
        if self.size == 0:
            raise StageError(f"{spec.behavior_id}: a policy needs at least one observation, the spec has none")

    def write(self, observations: tuple[Array, ...], out: NDArray[np.float32]) -> None:
        """Encode one array [n, *shape] per observation into `out` [n, size]."""
        at = 0
        for encoder, observation in zip(self._encoders, observations, strict=True):
            encoder.write(observation, out[:, at : at + encoder.size])
            at += encoder.size

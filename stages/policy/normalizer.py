"""Running mean and variance of observations, and their use: clamp((x - mean) / std, -5, 5).

Its state and its start are those of ML-Agents' normaliser: one imagined observation of 0 with variance 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.stages.errors import StageError

NORMALIZED_LIMIT = 5.0


class Normalizer:
    """The state of one normaliser over vectors of `size`; kept in float64, used in float32."""

    def __init__(self, size: int) -> None:
        self.steps = 1
        """Observations seen, counting the imagined first one."""
        self.mean: NDArray[np.float64] = np.zeros(size)
        self.squares: NDArray[np.float64] = np.ones(size)
        """Sum of squared deviations from the mean."""

    def update(self, rows: NDArray[np.float32]) -> None:
        """Count n more observations [n, size].

        Chan, Golub & LeVeque (1979), "Updating Formulae and a Pairwise Algorithm for Computing Sample
        Variances": means and squares of two sets are joined, so that no digits are lost to a distant mean.
        """
        n = len(rows)
        if n == 0:
            return
        batch = rows.astype(np.float64)
        batch_mean = batch.mean(axis=0)
        batch -= batch_mean
        total = self.steps + n
        shift = batch_mean - self.mean
        self.squares += np.einsum("ij,ij->j", batch, batch) + np.square(shift) * (self.steps * n / total)
        self.mean += shift * (n / total)
        self.steps = total

    def tensors(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(mean, 1 / standard deviation) as trainer and actors use them, each [size]."""
        return self.mean.astype(np.float32), (1.0 / np.sqrt(self.squares / self.steps)).astype(np.float32)

    def apply(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Normalised observations [n, size], a new array."""
        out = np.empty_like(rows)
        normalize(rows, *self.tensors(), out)
        return out

    def state_dict(self) -> dict[str, Any]:
        """The state, as plain values and arrays of its own."""
        return {"steps": self.steps, "mean": self.mean.copy(), "squares": self.squares.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`.

        Raises:
            StageError: if it is the state of a normaliser of another size.
        """
        for name in ("mean", "squares"):
            got = np.shape(state[name])
            if got != self.mean.shape:
                raise StageError(f"normalizer.{name}: expected shape {self.mean.shape}, got {got}")
        self.steps = int(state["steps"])
        self.mean = np.array(state["mean"], np.float64)
        self.squares = np.array(state["squares"], np.float64)


def normalize(
    rows: NDArray[np.float32],
    mean: NDArray[np.float32],
    inverse_std: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """Write the normalised `rows` [n, size] into `out`, which may be `rows` itself."""
    np.subtract(rows, mean, out=out)
    np.multiply(out, inverse_std, out=out)
    np.maximum(out, -NORMALIZED_LIMIT, out=out)  # these two cost a quarter of np.clip where rows are few
    np.minimum(out, NORMALIZED_LIMIT, out=out)

"""State-dependent noise for acting: gSDE, generalised state-dependent exploration.

Raffin, Kober and Stulp (2021), "Smooth Exploration for Robotic Reinforcement Learning". An action's noise is z·θ, where
z is the last hidden layer's output and θ [features, C] a matrix of independent draws from N(0, σ²). An agent keeps θ
for several decisions, so its noise varies only with its observations. Each single action has a Gaussian distribution
with the variance z²·σ² (eq. 5), to which Stable-Baselines3 adds `EPSILON`. Trainers therefore see a Gaussian whose log
σ depends on the state; `network.body` implements the same distribution in torch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Floats
from headrace.stages.policy.design import Layout, PolicyDesign

EPSILON = 1e-6
"""Added to variances, and to log σ in `use_expln`, as in Stable-Baselines3."""


def noise_size(design: PolicyDesign, layout: Layout) -> int:
    """Return the size of an agent's noise row.

    The row holds a matrix and the number of further decisions that the matrix is valid for.
    """
    shape = design.log_sigma_shape(0) if design.gsde is not None and design.explores else None
    if shape is None:
        return 0
    features, _ = dict(layout)["log_sigma"]
    return 1 + features * design.spec.actions.continuous_size


class StateNoise:
    """The noise for one design's policies, scaled by the loaded log σ.

    Each agent has a row of `noise_size` numbers, all zero before its first decision. The matrix in that row holds
    standard normals, so a newer policy scales them by its own σ.
    """

    def __init__(self, design: PolicyDesign) -> None:
        assert design.gsde is not None, "the settings ask for it"
        self._settings = design.gsde
        self._continuous = design.spec.actions.continuous_size
        self._limit = design.mean_limit
        self._sigma = np.zeros((0, self._continuous), np.float32)

    def load(self, log_sigma: Floats) -> None:
        """Load a policy's log σ, [features, C] or [features, 1].

        With `use_expln` (eq. 6 of the paper), σ grows logarithmically above 1.
        """
        sigma = np.exp(log_sigma)
        if self._settings.use_expln:
            above = np.log1p(np.maximum(log_sigma, 0) + np.float32(EPSILON)) + np.float32(1)
            sigma = np.where(log_sigma > 0, above, np.exp(np.minimum(log_sigma, 0)))
        self._sigma = np.repeat(sigma, self._continuous // sigma.shape[1], axis=1)

    def heads(self, outputs: Floats, encoding: Floats) -> Floats:
        """Return head outputs [d, 2C + choices], given the action layer's outputs [d, C + choices] and its inputs."""
        c = self._continuous
        means = np.clip(outputs[:, :c], -self._limit, self._limit) if self._limit else outputs[:, :c]
        variances = np.square(encoding) @ np.square(self._sigma)
        variances += np.float32(EPSILON)
        return np.concatenate([means, np.float32(0.5) * np.log(variances), outputs[:, c:]], axis=1)

    def draw(self, encoding: Floats, kept: Floats | None, random: np.random.Generator) -> tuple[Floats, Floats]:
        """Draw the noise [d, C] for d agents; return the noise and the agents' rows for their next decisions.

        Args:
            encoding: [d, features] the last hidden layer's outputs.
            kept: the agents' rows, which are not modified; None for the first decision.
            random: the source of new matrices, for agents whose matrix has expired.
        """
        d, features = encoding.shape
        size = features * self._continuous
        kept = np.zeros((d, 1 + size), np.float32) if kept is None else kept.copy()
        over: NDArray[np.intp] = np.flatnonzero(kept[:, 0] <= 0)
        if len(over):
            kept[over, 0] = np.inf if self._settings.sample_freq < 0 else self._settings.sample_freq
            kept[over, 1:] = random.standard_normal((len(over), size), np.float32)
        kept[:, 0] -= 1
        matrices = kept[:, 1:].reshape(d, features, self._continuous) * self._sigma
        return np.matmul(encoding[:, None], matrices)[:, 0], kept

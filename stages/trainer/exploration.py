"""Ways to explore for trainers whose networks do not output distributions, but, for example, Q values.

A trainer returns one from `Trainer.exploration`; `headrace.stages.policy.design.Exploration` is the interface.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Floats
from headrace.stages.policy.design import MASK_PENALTY, ActionDistributions
from headrace.stages.trainer.protocol import Schedule

_LEAST_SIGMA = 1e-6


class EpsilonGreedy:
    """In each branch, the choice with the largest output, or with probability ε any allowed choice, all equally likely.

    Continuous actions are drawn from the network's distributions.

    Args:
        epsilon: ε at a step of the trainer.
    """

    def __init__(self, epsilon: Schedule) -> None:
        self._epsilon = epsilon

    def explored(
        self,
        heads: ActionDistributions[Floats],
        allowed: tuple[NDArray[np.bool_], ...],
        random: np.random.Generator,
        step: int,
    ) -> ActionDistributions[Floats]:
        """See `Exploration`."""
        epsilon, logits = self._epsilon.at(step), []
        for values, mask in zip(heads.logits, allowed, strict=True):
            best = np.where(mask, values, values + MASK_PENALTY).argmax(axis=1)
            probabilities = np.repeat(epsilon / mask.sum(axis=1, dtype=np.float32)[:, None], mask.shape[1], axis=1)
            probabilities[np.arange(len(best)), best] += 1.0 - epsilon
            logits.append(np.log(np.maximum(probabilities, np.finfo(np.float32).tiny)))
        return heads._replace(logits=tuple(logits))


class GaussianNoise:
    """Continuous actions are the network's means plus noise from N(0, σ²); choices are those with the largest output.

    The noise is added before actions are squashed by tanh or clipped.

    Args:
        sigma: σ at a step of the trainer.
    """

    def __init__(self, sigma: Schedule) -> None:
        self._sigma = sigma
        self._greedy = EpsilonGreedy(Schedule("constant", 0.0, 0.0, 1))

    def explored(
        self,
        heads: ActionDistributions[Floats],
        allowed: tuple[NDArray[np.bool_], ...],
        random: np.random.Generator,
        step: int,
    ) -> ActionDistributions[Floats]:
        """See `Exploration`."""
        spread = np.full_like(heads.log_sigmas, np.log(max(self._sigma.at(step), _LEAST_SIGMA)))
        return self._greedy.explored(heads._replace(log_sigmas=spread), allowed, random, step)

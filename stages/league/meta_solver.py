"""Meta-solvers: the mixture of a population's members that plays best, from their payoffs against each other.

The empirical game is symmetric and zero-sum: its payoffs are an antisymmetric matrix, and its value is 0.
"""

from __future__ import annotations

import importlib.util

import numpy as np
from numpy.typing import NDArray

from headrace.stages.errors import StageError

Floats = NDArray[np.float64]

STEP, TIME, LEAST = 0.05, 100.0, 1e-6
"""Of projected replicator dynamics: the step, how long it goes on, and the least probability of a member."""


def require(solver: str | None) -> None:
    """Make sure that a meta-solver can be used.

    Raises:
        StageError: if it needs SciPy, and that is not installed.
    """
    if solver == "nash" and importlib.util.find_spec("scipy") is None:
        raise StageError(
            "meta_solver 'nash' needs SciPy, which is not installed: pip install 'headrace[league]'; or use "
            "'replicator', which does without"
        )


def solve(payoffs: Floats, solver: str) -> Floats:
    """Return the probability [n] of each member.

    Args:
        payoffs: [n, n] of the row's member against the column's; antisymmetric, n at least 1.
        solver: `nash`, `replicator` or `uniform`.
    """
    largest = np.abs(payoffs).max(initial=0.0)
    if len(payoffs) == 1 or solver == "uniform" or largest == 0:
        return np.full(len(payoffs), 1 / len(payoffs))
    return (_nash if solver == "nash" else _replicator)(payoffs / largest)


def _nash(payoffs: Floats) -> Floats:
    """The Nash equilibrium in which the most likely member is least likely, by linear programming.

    A mixture x is one where no member has a payoff above 0 against it. Among these it minimises m with x <= m, so
    that members of equal worth share what is theirs.
    """
    from scipy.optimize import linprog  # an extra

    n = len(payoffs)
    m = np.ones((n, 1))
    found = linprog(
        c=[*np.zeros(n), 1.0],
        A_ub=np.block([[payoffs, 0 * m], [np.eye(n), -m]]),
        b_ub=np.zeros(2 * n),
        A_eq=[[*np.ones(n), 0.0]],
        b_eq=[1.0],
        bounds=(0, 1),
    )
    if not found.success:
        raise StageError(f"the meta-solver finds no Nash equilibrium of {n} members: {found.message}")
    mixture = np.maximum(found.x[:n], 0.0)
    return np.asarray(mixture / mixture.sum(), np.float64)


def _replicator(payoffs: Floats) -> Floats:
    """The mean over time of projected replicator dynamics from the uniform mixture (Lanctot et al. 2017).

    The mean payoff, which the dynamics subtract from each member's, is 0 in a symmetric zero-sum game.
    """
    n = len(payoffs)
    mixture, total = np.full(n, 1 / n), np.zeros(n)
    steps = round(TIME / STEP)
    for _ in range(steps):
        mixture = mixture * (1 + STEP * (payoffs @ mixture))
        if mixture.min() < LEAST:
            mixture = projected(mixture, LEAST)
        total += mixture
    return np.asarray(total / total.sum(), np.float64)


def projected(point: Floats, least: float) -> Floats:
    """The nearest mixture to a point in which no probability is below `least` (Wang and Carreira-Perpiñán 2013)."""
    n = len(point)
    ranks = np.arange(1, n + 1)
    falling = np.sort(point)[::-1] - least
    shifts = (1 - n * least - np.cumsum(falling)) / ranks
    last = int(np.flatnonzero(falling + shifts > 0)[-1])
    return np.asarray(np.maximum(point - least + shifts[last], 0.0) + least)

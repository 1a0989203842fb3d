"""Meta-solvers: the best mixture of a population's members, from their payoffs against each other.

The empirical game is zero-sum. With one population it is symmetric: its payoffs are an antisymmetric matrix, and its
value is 0. With two populations, the rows and the columns are different members with separate mixtures, and the value
can be any number.
"""

from __future__ import annotations

import importlib.util

import numpy as np
from numpy.typing import NDArray

from headrace.stages.errors import StageError

Floats = NDArray[np.float64]

STEP, TIME, LEAST = 0.05, 100.0, 1e-6
"""Settings of projected replicator dynamics: the step size, the total time, and a member's minimum probability."""

_TOLERANCE = 1e-9
"""How far the second linear program may fall short of the first one's value."""


def require(solver: str | None) -> None:
    """Check that a meta-solver can be used.

    Raises:
        StageError: if it needs SciPy, which is not installed.
    """
    if solver == "nash" and importlib.util.find_spec("scipy") is None:
        raise StageError(
            "meta_solver 'nash' needs SciPy, which is not installed: pip install \"headrace[league]\"; or use "
            "'replicator', which does not need SciPy"
        )


def solve(payoffs: Floats, solver: str) -> Floats:
    """Return the probability [n] of each member.

    Args:
        payoffs: [n, n] the row member's payoff against the column member; antisymmetric, n at least 1.
        solver: `nash`, `replicator` or `uniform`.
    """
    largest = np.abs(payoffs).max(initial=0.0)
    if len(payoffs) == 1 or solver == "uniform" or largest == 0:
        return np.full(len(payoffs), 1 / len(payoffs))
    return (_nash if solver == "nash" else _replicator)(payoffs / largest)


def solve_two(payoffs: Floats, solver: str) -> tuple[Floats, Floats]:
    """Return the probabilities of the members of two populations that play each other: [n] and [m].

    Args:
        payoffs: [n, m] the row member's payoff against the column member, whose payoff is the negative; n and m at
            least 1.
        solver: `nash`, `replicator` or `uniform`.
    """
    n, m = payoffs.shape
    largest = np.abs(payoffs).max(initial=0.0)
    if solver == "uniform" or largest == 0:
        return np.full(n, 1 / n), np.full(m, 1 / m)
    if solver == "replicator":
        return _two_replicators(payoffs / largest)
    return _best_mixture(payoffs / largest), _best_mixture(-payoffs.T / largest)


def _best_mixture(payoffs: Floats) -> Floats:
    """Return the row player's maximin mixture whose largest probability is smallest, by linear programming.

    The first program finds the value v, the highest guaranteed payoff against every column. The second finds, among
    the mixtures that guarantee v, the one with the smallest largest entry.
    """
    from scipy.optimize import linprog  # an optional dependency

    n, m = payoffs.shape
    against = np.hstack([-payoffs.T, np.ones((m, 1))])  # v - x A <= 0
    bounds = [*[(0, 1)] * n, (-1, 1)]
    found = linprog([*np.zeros(n), -1.0], against, np.zeros(m), [[*np.ones(n), 0.0]], [1.0], bounds)
    if not found.success:
        raise StageError(f"the meta-solver found no Nash equilibrium for {n} and {m} members: {found.message}")
    return _most_even(payoffs, found.x[n] - _TOLERANCE)


def _most_even(payoffs: Floats, value: float) -> Floats:
    """Return the mixture with the smallest largest entry, among those that guarantee a value against each column.

    Equally strong members therefore get equal probabilities.
    """
    from scipy.optimize import linprog  # an optional dependency

    n, m = payoffs.shape
    found = linprog(
        c=[*np.zeros(n), 1.0],
        A_ub=np.block([[-payoffs.T, np.zeros((m, 1))], [np.eye(n), -np.ones((n, 1))]]),
        b_ub=[*np.full(m, -value), *np.zeros(n)],
        A_eq=[[*np.ones(n), 0.0]],
        b_eq=[1.0],
        bounds=(0, 1),
    )
    if not found.success:
        raise StageError(f"the meta-solver found no Nash equilibrium for {n} and {m} members: {found.message}")
    mixture = np.maximum(found.x[:n], 0.0)
    return np.asarray(mixture / mixture.sum(), np.float64)


def _two_replicators(payoffs: Floats) -> tuple[Floats, Floats]:
    """Return the time averages of projected replicator dynamics of two populations, from uniform mixtures."""
    mixtures = [np.full(size, 1 / size) for size in payoffs.shape]
    totals = [np.zeros(size) for size in payoffs.shape]
    for _ in range(round(TIME / STEP)):
        x, y = mixtures
        value = x @ payoffs @ y
        grown = x * (1 + STEP * (payoffs @ y - value)), y * (1 + STEP * (value - x @ payoffs))
        mixtures = [projected(each, LEAST) if each.min() < LEAST else each for each in grown]
        for total, mixture in zip(totals, mixtures, strict=True):
            total += mixture
    return totals[0] / totals[0].sum(), totals[1] / totals[1].sum()


def _nash(payoffs: Floats) -> Floats:
    """Return the most even Nash equilibrium of a symmetric zero-sum game, whose value is 0."""
    return _most_even(payoffs, 0.0)


def _replicator(payoffs: Floats) -> Floats:
    """Return the time average of projected replicator dynamics from the uniform mixture (Lanctot et al. 2017).

    The mean payoff, which the dynamics subtract from each member's payoff, is 0 in a symmetric zero-sum game.
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
    """Return the mixture nearest to a point, with no probability below `least` (Wang and Carreira-Perpiñán 2013)."""
    n = len(point)
    ranks = np.arange(1, n + 1)
    falling = np.sort(point)[::-1] - least
    shifts = (1 - n * least - np.cumsum(falling)) / ranks
    last = int(np.flatnonzero(falling + shifts > 0)[-1])
    return np.asarray(np.maximum(point - least + shifts[last], 0.0) + least)

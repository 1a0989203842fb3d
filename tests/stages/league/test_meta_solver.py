"""Meta-solvers, on games whose equilibria are known."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from headrace.stages.league.matchmaking import solve, solve_two

ROCK_PAPER_SCISSORS = np.array([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]])
SCIPY = pytest.mark.skipif(importlib.util.find_spec("scipy") is None, reason="SciPy is an extra")
SOLVERS = [pytest.param("nash", marks=SCIPY), "replicator", "uniform"]


def antisymmetric(n: int, seed: int) -> np.ndarray:
    payoffs = np.random.default_rng(seed).normal(size=(n, n))
    return payoffs - payoffs.T


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_single_member_always_plays_and_equal_members_play_equally_often(solver):
    assert solve(np.zeros((1, 1)), solver).tolist() == [1.0]
    assert solve(np.zeros((3, 3)), solver) == pytest.approx([1 / 3] * 3)
    assert solve(ROCK_PAPER_SCISSORS, solver) == pytest.approx([1 / 3] * 3, abs=1e-6)


@pytest.mark.parametrize("solver", ["replicator", pytest.param("nash", marks=SCIPY)])
def test_a_member_that_beats_all_plays_alone(solver):
    payoffs = np.array([[0.0, -1, -1], [1, 0, 1], [1, -1, 0]])
    assert solve(payoffs, solver) == pytest.approx([0, 1, 0], abs=0.15 if solver == "replicator" else 1e-9)


@SCIPY
def test_nash_weighs_by_what_the_others_win():
    """Rock that wins twice as much: scissors and paper make up for it, (1, 2, 1) / 4."""
    payoffs = np.array([[0.0, -1, 2], [1, 0, -1], [-2, 1, 0]])
    assert solve(payoffs, "nash") == pytest.approx([0.25, 0.5, 0.25])


@pytest.mark.lengthy
@SCIPY
@given(st.integers(1, 12), st.integers(0, 1000))
@examples(12)
def test_nothing_wins_against_nash(n, seed):
    payoffs = antisymmetric(n, seed)
    found = solve(payoffs, "nash")
    assert found.sum() == pytest.approx(1)
    assert found.min() >= 0
    assert (payoffs @ found).max() <= 1e-6


def test_the_mean_of_the_replicator_dynamics_is_near_an_equilibrium():
    payoffs = antisymmetric(6, 3)
    found = solve(payoffs, "replicator")
    assert found.sum() == pytest.approx(1)
    assert (payoffs @ found).max() < 0.05 * np.abs(payoffs).max()


@pytest.mark.parametrize("solver", ["uniform", pytest.param("nash", marks=SCIPY), "replicator"])
def test_two_populations_have_separate_mixtures_that_add_up_to_one(solver):
    x, y = solve_two(np.zeros((2, 3)), solver)
    assert (x.tolist(), y.tolist()) == ([1 / 2] * 2, pytest.approx([1 / 3] * 3))
    pennies = np.array([[3.0, -1.0], [-1.0, 1.0]])
    x, y = solve_two(pennies, solver)
    if solver != "uniform":
        assert (x, y) == (pytest.approx([1 / 3, 2 / 3], abs=0.02), pytest.approx([1 / 3, 2 / 3], abs=0.02))


@pytest.mark.lengthy
@SCIPY
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 10**6))
@examples(15)
def test_no_deviation_from_the_equilibrium_of_two_populations_gains(n, m, seed):
    payoffs = np.random.default_rng(seed).normal(size=(n, m)) + 0.7
    x, y = solve_two(payoffs, "nash")
    assert (payoffs @ y).max() - (x @ payoffs).min() < 1e-6 * max(1, np.abs(payoffs).max())

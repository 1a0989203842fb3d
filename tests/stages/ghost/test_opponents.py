"""How snapshots are chosen to play against."""

from __future__ import annotations

import inspect
from collections import Counter

import numpy as np
import pytest

from headrace.config.opponents import OPPONENT_SAMPLERS
from headrace.stages.ghost.policy_history import Candidate, PrioritisedOpponents, UniformOpponents
from headrace.stages.loading import load_attribute


def candidate(number, wins=0, draws=0, losses=0):
    return Candidate(number, 1200.0, wins + draws + losses, wins, draws, losses)


def shares(sampler, candidates, draws=6000):
    random = np.random.default_rng(5)
    counts = Counter(sampler.choose(candidates, random) for _ in range(draws))
    return {number: counts[number] / draws for number in sorted(counts)}


@pytest.mark.parametrize("kind", OPPONENT_SAMPLERS.values(), ids=OPPONENT_SAMPLERS)
def test_a_built_in_sampler_accepts_the_keys_of_its_entry_in_the_table(kind):
    made = load_attribute(kind.implementation, None, "sampler")
    assert tuple(inspect.signature(made).parameters) == kind.keys


@pytest.mark.parametrize(
    ("wins", "draws", "losses", "beaten"), [(0, 0, 0, 0.5), (8, 0, 0, 0.9), (0, 0, 8, 0.1), (2, 4, 2, 0.5)]
)
def test_the_probability_of_beating_a_candidate_is_smoothed(wins, draws, losses, beaten):
    assert candidate(0, wins, draws, losses).beaten == pytest.approx(beaten)


def test_uniform_sampling_is_equally_likely():
    found = shares(UniformOpponents(), [candidate(3, wins=90), candidate(4), candidate(7, losses=90)])
    assert found == pytest.approx({3: 1 / 3, 4: 1 / 3, 7: 1 / 3}, abs=0.02)


@pytest.mark.lengthy
@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_prioritised_sampling_weighs_by_the_probability_of_losing(power):
    candidates = [candidate(0, wins=8), candidate(1), candidate(2, losses=8)]  # beaten with 0.9, 0.5, 0.1
    weights = np.array([0.1, 0.5, 0.9]) ** power
    expected = dict(zip(range(3), weights / weights.sum(), strict=True))
    assert shares(PrioritisedOpponents(power), candidates) == pytest.approx(expected, abs=0.02)


def test_a_power_beyond_what_numbers_hold_chooses_the_hardest():
    candidates = [candidate(0, wins=10**6), candidate(1, wins=10**6 - 1, losses=1)]
    assert shares(PrioritisedOpponents(10000.0), candidates, draws=10) == {1: 1.0}

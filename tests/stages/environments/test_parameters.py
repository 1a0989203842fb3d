"""Environment parameters in an actor: what samplers draw, from which seeds, and which groups get it."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import numpy as np
import pytest

from headrace.queues.specs import BehaviorSpec
from headrace.stages.environments.parameters import (
    EnvironmentParameters,
    EpisodeParameters,
    SupportsParameters,
    connect_parameters,
)
from headrace.stages.environments.protocol import StepResult


def sampler(kind, **parameters):
    return {"sampler_type": kind, "sampler_parameters": parameters}


def made(plain, seed=0, spawn_key=(0,), num_envs=1000, generation=0):
    parameters = EpisodeParameters()
    parameters.receive(EnvironmentParameters(generation, plain))
    parameters.set_instances(num_envs)
    parameters.reseed(seed, *spawn_key)
    return parameters


def drawn(plain, count=1000, **options):
    """So many values of one parameter."""
    return made({"p": plain}, **options).draw(list(range(count)))["p"]


# What samplers give. -------------------------------------------------------------------------------------------------


def test_numbers_and_constant_samplers_are_always_the_same():
    parameters = made({"gravity": 9.81, "mass": sampler("constant", value=2)})
    values = parameters.draw([3, 5])
    assert {name: column.tolist() for name, column in values.items()} == {"gravity": [9.81, 9.81], "mass": [2.0, 2.0]}
    assert all(column.dtype == np.float64 for column in values.values())


def test_uniform_values_fill_their_range_evenly():
    values = drawn(sampler("uniform", min_value=-1, max_value=3))
    counts, _ = np.histogram(values, 4, (-1, 3))
    assert counts.sum() == 1000
    assert counts.min() > 200, "250 each on average, with a deviation of 14"


def test_gaussian_values_have_their_mean_and_deviation():
    values = drawn(sampler("gaussian", mean=5, st_dev=2))
    assert abs(values.mean() - 5) < 4 * 2 / math.sqrt(1000)
    assert abs(values.std() - 2) < 0.2
    assert abs((values < 5).mean() - 0.5) < 0.07


def test_ranges_are_drawn_in_proportion_to_their_lengths():
    values = drawn(sampler("multirangeuniform", intervals=[[0, 1], [10, 13], [5, 5]]))
    low, high = values[values < 2], values[values > 9]
    assert len(low) + len(high) == 1000
    assert abs(len(high) - 750) < 60, "in proportion to their lengths"
    assert (low.min(), low.max()) == pytest.approx((0, 1), abs=0.05)
    assert (high.min(), high.max()) == pytest.approx((10, 13), abs=0.05)


# Seeds. --------------------------------------------------------------------------------------------------------------

RANDOM = sampler("uniform")
SEEDED = sampler("uniform", seed=7)


def test_values_differ_from_instance_to_instance_and_from_episode_to_episode():
    parameters = made({"p": RANDOM})
    values = np.concatenate([parameters.draw([0, 1, 2])["p"] for _ in range(3)])
    assert len(set(values)) == 9


def test_the_run_s_seed_and_the_stretch_make_the_values():
    first = drawn(RANDOM, 5, seed=1, spawn_key=(0, -1))
    assert (drawn(RANDOM, 5, seed=1, spawn_key=(0, -1)) == first).all()
    for other in (
        {"seed": 2, "spawn_key": (0, -1)},
        {"seed": 1, "spawn_key": (1, -1)},
        {"seed": 1, "spawn_key": (0, 3)},
    ):
        assert (drawn(RANDOM, 5, **other) != first).all()


def test_a_sampler_s_own_seed_takes_precedence_over_the_run_s_but_not_over_the_spawn_key():
    first = drawn(SEEDED, 5, seed=1, spawn_key=(0, 4))
    assert (drawn(SEEDED, 5, seed=2, spawn_key=(0, 4)) == first).all()
    assert (drawn(SEEDED, 5, seed=1, spawn_key=(0, 5)) != first).all()
    assert (drawn(sampler("uniform", seed=8), 5, seed=1, spawn_key=(0, 4)) != first).all()


def test_a_next_lesson_continues_the_random_numbers_of_the_one_before():
    kept, changed = made({"p": RANDOM}), made({"p": RANDOM})
    kept.draw([0])
    changed.draw([0])
    changed.receive(EnvironmentParameters(1, {"p": sampler("uniform", min_value=10, max_value=11)}))
    assert changed.options(0)["p"] == pytest.approx(10 + kept.options(0)["p"])


# Generations. --------------------------------------------------------------------------------------------------------


def test_the_generation_at_the_start_of_each_instance_s_episode_is_known():
    parameters = made({"p": 1.0}, num_envs=3, generation=4)
    assert parameters.begun.tolist() == [4, 4, 4]
    before = parameters.begun
    parameters.receive(EnvironmentParameters(5, {"p": 2.0}))
    parameters.draw([1])
    parameters.begin([2])
    assert parameters.begun.tolist() == [4, 5, 5]
    assert before.tolist() == [4, 4, 4], "an array that was taken before keeps its numbers"


# Telling. ------------------------------------------------------------------------------------------------------------


class Deaf:
    """An environment group without behaviours."""

    num_envs = 2

    def __init__(self):
        self.behavior_specs: Mapping[str, BehaviorSpec] = {}

    def reset(self, seed=None):
        return StepResult({})

    def step(self, actions):
        return StepResult({})

    def close(self):
        pass


class Hearing(Deaf):
    def set_parameters(self, parameters):
        self.parameters = parameters


def test_a_group_with_the_setter_gets_the_parameters(caplog):
    parameters, group = made({"p": 1.0}, num_envs=9), Hearing()
    connect_parameters(group, parameters, logging.getLogger())
    assert isinstance(group, SupportsParameters)
    assert group.parameters is parameters
    assert len(parameters.begun) == 2
    assert not caplog.records


def test_a_group_without_the_setter_is_named_with_the_fix(caplog):
    connect_parameters(Deaf(), made({"p": 1.0}), logging.getLogger())
    assert "Deaf does not accept parameters" in caplog.text
    assert "set_parameters(self, parameters)" in caplog.text

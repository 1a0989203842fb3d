"""Environment parameters in an actor: what samplers draw, from which seeds, and which groups get it."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_of_several_ranges_the_longer_one_has_more_values():
    values = drawn(sampler("multirangeuniform", intervals=[[0, 1], [10, 13], [5, 5]]))
    low, high = values[values < 2], values[values > 9]
    assert len(low) + len(high) == 1000
    assert abs(len(high) - 750) < 60, "in proportion to their lengths"
    assert (low.min(), low.max()) == pytest.approx((0, 1), abs=0.05)
    assert (high.min(), high.max()) == pytest.approx((10, 13), abs=0.05)


def test_ranges_that_are_mere_points_are_drawn_alike():
    values = drawn(sampler("multirangeuniform", intervals=[[1, 1], [7, 7]]))
    assert set(values) == {1.0, 7.0}
    assert abs((values == 1).mean() - 0.5) < 0.07


INTERVALS = st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e6)), min_size=1, max_size=5)


@given(INTERVALS, st.integers(0, 2**31))
def test_values_of_ranges_lie_in_one_of_them(intervals, seed):
    pairs = [[least, least + width] for least, width in intervals]
    for value in drawn(sampler("multirangeuniform", intervals=pairs), 50, seed=seed):
        assert any(least <= value <= greatest for least, greatest in pairs)


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


def test_two_parameters_are_independent_also_with_the_same_seed():
    values = made({"p": SEEDED, "q": SEEDED}).draw([0, 1, 2])
    assert (values["p"] != values["q"]).all()


def test_one_by_one_gives_what_all_at_once_gives():
    plain = {"p": RANDOM, "q": sampler("gaussian"), "r": sampler("multirangeuniform"), "s": 4.0}
    whole = made(plain).draw([0, 1, 2])
    single = made(plain)
    for i in range(3):
        assert single.options(i) == {name: column[i] for name, column in whole.items()}


def test_a_next_lesson_continues_the_random_numbers_of_the_one_before():
    kept, changed = made({"p": RANDOM}), made({"p": RANDOM})
    kept.draw([0])
    changed.draw([0])
    changed.receive(EnvironmentParameters(1, {"p": sampler("uniform", min_value=10, max_value=11)}))
    assert changed.options(0)["p"] == pytest.approx(10 + kept.options(0)["p"])


def test_starting_anew_gives_the_same_values_again():
    parameters = made({"p": RANDOM, "q": SEEDED}, seed=3, spawn_key=(0, 2))
    first = parameters.options(0)
    parameters.options(0)
    parameters.reseed(3, 0, 2)
    assert parameters.options(0) == first


# Generations. --------------------------------------------------------------------------------------------------------


def test_it_knows_under_which_generation_each_instance_s_episode_began():
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


def test_a_group_with_the_setter_gets_them(caplog):
    parameters, group = made({"p": 1.0}, num_envs=9), Hearing()
    connect_parameters(group, parameters, logging.getLogger())
    assert isinstance(group, SupportsParameters)
    assert group.parameters is parameters
    assert len(parameters.begun) == 2
    assert not caplog.records


def test_a_group_that_can_t_take_them_is_named_with_what_to_do(caplog):
    connect_parameters(Deaf(), made({"p": 1.0}), logging.getLogger())
    assert "Deaf does not accept parameters" in caplog.text
    assert "set_parameters(self, parameters)" in caplog.text


def test_without_parameters_no_group_gets_any_and_there_is_no_warning(caplog):
    group = Hearing()
    for each in (group, Deaf()):
        connect_parameters(each, EpisodeParameters(), logging.getLogger())
    assert not hasattr(group, "parameters")
    assert not caplog.records

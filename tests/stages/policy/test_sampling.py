"""Distributions over actions: what is drawn, and how probable it was."""

import math
from dataclasses import replace

import numpy as np
import pytest

from headrace.config import NetworkSettings
from headrace.queues.columns import decision_columns
from headrace.queues.messages import PolicyUpdate
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.errors import NotFiniteError, StageError
from headrace.stages.policy.design import MASK_PENALTY, PolicyDesign
from headrace.stages.policy.sampling import (
    ActionSampler,
    check_heads,
    log_tanh_slope,
    sample_categorical,
    sample_squashed,
)


def design(actions, squashed=False):
    return PolicyDesign(BehaviorSpec("Test", (ObservationSpec("o", (2,)),), actions), NetworkSettings(), squashed)


def heads_for(made, d, seed=0, scale=1.0):
    return (np.random.default_rng(seed).normal(size=(d, made.head_size)) * scale).astype(np.float32)


# Squashed Gaussian. --------------------------------------------------------------------------------------------------


def test_a_squashed_log_probability_is_that_of_a_case_worked_out_by_hand():
    # μ = 0.5, σ = 2, noise 0.25: u = 1. log N = -0.03125 - 0.693147 - 0.918939 = -1.643336;
    # 1 - tanh²(1) = 1 - 0.761594² = 0.419974, its log -0.867562.
    log_probs = np.empty((1, 1), np.float32)
    heads = np.array([[0.5]], np.float32), np.array([[math.log(2.0)]], np.float32)
    actions = sample_squashed(*heads, np.array([[0.25]], np.float32), log_probs)
    assert actions[0, 0] == pytest.approx(0.761594, abs=1e-6)
    assert log_probs[0, 0] == pytest.approx(-1.643336 + 0.867562, abs=1e-5)


@pytest.mark.parametrize(("mu", "log_sigma", "noise"), [(0.0, -3.0, 1.7), (-1.2, 0.4, -0.6), (3.0, 1.0, 0.9)])
def test_squashed_log_probabilities_follow_from_the_change_of_variables(mu, log_sigma, noise):
    # Naively, in float64: p(a) = N(atanh a; μ, σ) / (1 - a²).
    log_probs = np.empty((1, 1), np.float32)
    heads = np.array([[mu]], np.float32), np.array([[log_sigma]], np.float32)
    actions = sample_squashed(*heads, np.array([[noise]], np.float32), log_probs)
    u = mu + math.exp(log_sigma) * noise
    density = math.exp(-(noise**2) / 2) / (math.sqrt(2 * math.pi) * math.exp(log_sigma)) / (1 - math.tanh(u) ** 2)
    assert actions[0, 0] == pytest.approx(math.tanh(u), rel=1e-5)
    assert log_probs[0, 0] == pytest.approx(math.log(density), rel=1e-4)


@pytest.mark.parametrize("u", [10.0, -10.0, 30.0, -30.0, 88.0, 1000.0])
def test_the_slope_of_tanh_is_right_if_tanh_is_one(u):
    # 1 - tanh² u = 4 e^(-2|u|) / (1 + e^(-2|u|))², in float64; the naive form gives log 0.
    tail = math.exp(-2 * abs(u))
    expected = math.log(4) - 2 * abs(u) - 2 * math.log1p(tail)
    assert float(log_tanh_slope(np.array([u], np.float32))[0]) == pytest.approx(expected, rel=1e-6)


def test_the_slope_of_tanh_is_that_of_the_plain_formula_if_that_can_be_computed():
    u = np.linspace(-6, 6, 4001)
    expected = np.log1p(-(np.tanh(u) ** 2))
    np.testing.assert_allclose(log_tanh_slope(u.astype(np.float32)), expected, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("mean", [10.0, -10.0, 500.0])
def test_saturated_actions_have_finite_log_probabilities_that_are_right(mean):
    log_probs = np.empty((1, 1), np.float32)
    heads = np.array([[mean]], np.float32), np.array([[-1.0]], np.float32)
    actions = sample_squashed(*heads, np.array([[0.5]], np.float32), log_probs)
    u = mean + math.exp(-1.0) * 0.5
    slope = math.log(4) - 2 * abs(u) - 2 * math.log1p(math.exp(-2 * abs(u)))
    expected = -0.125 + 1.0 - 0.5 * math.log(2 * math.pi) - slope
    assert abs(actions[0, 0]) == pytest.approx(1.0, abs=1e-7)
    assert log_probs[0, 0] == pytest.approx(expected, rel=1e-5)


def test_log_sigma_is_clamped_to_minus_20_and_2():
    wide, narrow = (np.empty((1, 1), np.float32) for _ in range(2))
    mean = np.array([[0.1]], np.float32)
    actions = sample_squashed(mean, np.array([[50.0]], np.float32), np.array([[0.2]], np.float32), wide)
    assert actions[0, 0] == pytest.approx(math.tanh(0.1 + math.exp(2.0) * 0.2), rel=1e-5)
    sample_squashed(mean, np.array([[-90.0]], np.float32), np.array([[0.0]], np.float32), narrow)
    slope = math.log(1 - math.tanh(0.1) ** 2)
    assert narrow[0, 0] == pytest.approx(20.0 - 0.5 * math.log(2 * math.pi) - slope, rel=1e-5)


def test_the_deterministic_squashed_action_is_the_squashed_mean():
    made = design(ActionSpec(2, unbounded=(1,)), squashed=True)
    heads = heads_for(made, 30, scale=3.0)
    given, columns = ActionSampler(made).sample(heads, None, np.random.default_rng(0), deterministic=True)
    np.testing.assert_allclose(given.continuous, np.tanh(heads[:, :2]), rtol=1e-6)
    np.testing.assert_array_equal(columns["continuous_actions"], given.continuous)
    sigma = np.exp(np.clip(heads[:, 2:].astype(np.float64), -20, 2))
    peak = -np.log(sigma) - 0.5 * math.log(2 * math.pi) - np.log1p(-(np.tanh(heads[:, :2].astype(np.float64)) ** 2))
    np.testing.assert_allclose(columns["log_probs"], peak, atol=1e-3)


def test_squashed_samples_have_the_mean_and_spread_of_their_gaussian():
    made = design(ActionSpec(1), squashed=True)
    heads = np.tile(np.array([0.3, -1.2], np.float32), (40_000, 1))
    _, columns = ActionSampler(made).sample(heads, None, np.random.default_rng(1), deterministic=False)
    u = np.arctanh(columns["continuous_actions"].astype(np.float64))
    assert u.mean() == pytest.approx(0.3, abs=0.01)
    assert u.std() == pytest.approx(math.exp(-1.2), rel=0.02)


# Categorical. --------------------------------------------------------------------------------------------------------


def test_choices_come_as_often_as_their_probabilities_say():
    logits = np.tile(np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32)) + np.float32(2.0), (40_000, 1))
    choices, log_probs = sample_categorical(logits, np.random.default_rng(3), False)
    shares = np.bincount(choices, minlength=4) / len(choices)
    np.testing.assert_allclose(shares, [0.5, 0.3, 0.15, 0.05], atol=0.01)
    np.testing.assert_allclose(np.exp(log_probs), np.array([0.5, 0.3, 0.15, 0.05])[choices], rtol=1e-5)


class Extreme(np.random.Generator):
    """A generator of the least or the largest number that can be drawn."""

    def __init__(self, value):
        super().__init__(np.random.PCG64())
        self.value = value

    def random(self, n, dtype):  # type: ignore[override]  # only the call that is made
        return np.full(n, self.value, dtype)


@pytest.mark.parametrize("drawn", [0.0, 1.0 - 2.0**-24])
def test_forbidden_choices_are_not_taken_even_at_the_edges_of_the_draw(drawn):
    random = np.random.default_rng(0)
    logits = random.normal(0, 5, (2000, 6)).astype(np.float32)
    masks = random.random((2000, 6)) < 0.5
    masks[:, 3] |= ~masks.any(axis=1)
    choices, log_probs = sample_categorical(np.where(masks, logits, logits + MASK_PENALTY), Extreme(drawn), False)
    assert masks[np.arange(2000), choices].all()
    assert np.isfinite(log_probs).all()


@pytest.mark.parametrize("squashed", [False, True])
def test_a_single_allowed_choice_is_always_taken_with_probability_one(squashed):
    made = design(ActionSpec(1, (3, 2), masked=True), squashed)
    sampler = ActionSampler(made)
    if not squashed:
        sampler.log_sigma = np.zeros(1, np.float32)
    masks = np.tile([False, True, False, False, True], (100, 1))
    given, columns = sampler.sample(heads_for(made, 100), masks, np.random.default_rng(0), deterministic=False)
    assert (given.discrete == [1, 1]).all()
    np.testing.assert_array_equal(columns["log_probs"][:, 1:], 0.0)
    np.testing.assert_array_equal(columns["action_masks"], masks)


def test_a_mask_that_forbids_everything_names_row_and_branch():
    made = design(ActionSpec(0, (3, 2), masked=True))
    masks = np.ones((4, 5), np.bool_)
    masks[2, 3:] = False
    with pytest.raises(StageError, match="row 2 forbids all 2 choices of branch 1"):
        ActionSampler(made).sample(heads_for(made, 4), masks, np.random.default_rng(0), deterministic=False)


# All of them. --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("squashed", [False, True])
@pytest.mark.parametrize("actions", [ActionSpec(3), ActionSpec(0, (4, 2)), ActionSpec(2, (3, 2), masked=True)])
def test_columns_have_the_dtypes_and_shapes_of_the_column_table(actions, squashed):
    made = design(actions, squashed)
    sampler = ActionSampler(made)
    if actions.continuous_size and not squashed:
        sampler.log_sigma = np.zeros(actions.continuous_size, np.float32)
    given, columns = sampler.sample(heads_for(made, 6), None, np.random.default_rng(0), deterministic=False)
    expected = {c.name: (np.dtype(c.dtype), (6, *c.shape)) for c in decision_columns(made.spec)}
    assert {n: (a.dtype, a.shape) for n, a in columns.items()} == expected
    assert (given.continuous.shape, given.continuous.dtype) == ((6, actions.continuous_size), np.float32)
    assert (given.discrete.shape, given.discrete.dtype) == ((6, len(actions.discrete_branches)), np.int32)


@pytest.mark.parametrize("squashed", [False, True])
def test_the_branches_of_a_hybrid_choose_by_their_own_logits(squashed):
    made = design(ActionSpec(2, (3, 2)), squashed)
    sampler = ActionSampler(made)
    if not squashed:
        sampler.log_sigma = np.zeros(2, np.float32)
    heads = heads_for(made, 20)
    given, columns = sampler.sample(heads, None, np.random.default_rng(0), deterministic=True)
    logits = heads[:, -5:].astype(np.float64)
    for index, branch in enumerate((logits[:, :3], logits[:, 3:])):
        np.testing.assert_array_equal(given.discrete[:, index], branch.argmax(axis=1))
        best = branch.max(axis=1) - np.log(np.exp(branch).sum(axis=1))
        np.testing.assert_allclose(columns["log_probs"][:, 2 + index], best, atol=1e-5)


def test_sampled_actions_share_no_memory_with_the_heads():
    made = design(ActionSpec(2), squashed=True)
    heads = heads_for(made, 5)
    before = heads.copy()
    given, columns = ActionSampler(made).sample(heads, None, np.random.default_rng(0), deterministic=True)
    given.continuous[:] = columns["continuous_actions"][:] = columns["log_probs"][:] = 7.0
    np.testing.assert_array_equal(heads, before)


def test_heads_that_are_not_finite_are_refused_with_what_was_observed():
    heads = np.zeros((3, 2), np.float32)
    heads[1, 1] = np.inf
    with pytest.raises(
        NotFiniteError,
        match=r"Test: policy version 4 outputs \[0.0, inf\] for row 1 of 3 agents, whose observation is \[\[2\]\]",
    ):
        check_heads("Test", 4, heads, [np.arange(3)[:, None] * 2])


def test_an_observation_that_is_not_finite_is_named_as_the_environments_doing():
    heads = np.zeros((2, 2), np.float32)
    heads[1, 1] = np.nan
    observation = np.array([[0.0, 1.0], [0.5, np.nan]], np.float32)
    with pytest.raises(
        NotFiniteError,
        match=r"Test: the environment gave row 1 of 2 agents .* \[\[0.5, nan\]\]\. The environment is the",
    ):
        check_heads("Test", 4, heads, [observation])


def test_of_a_large_observation_only_the_gist_is_shown():
    heads = np.full((1, 1), np.nan, np.float32)
    image, things = np.full((1, 9, 9, 3), 200, np.uint8), np.zeros((1, 50, 2), np.float32)
    things[0, 3, 1] = np.nan
    with pytest.raises(NotFiniteError, match="243 finite numbers from 200 to 200, 100 numbers, 1 of them not finite"):
        check_heads("Test", 0, heads, [image, things])


# Uniformly at random. ------------------------------------------------------------------------------------------------


def uniform_sampler(actions, step=0, snapshot=-1):
    made = replace(design(actions, squashed=True), random_steps=100)
    sampler = ActionSampler(made)
    sampler.adopt(PolicyUpdate("Test", 1, np.empty(0, np.float32), (), step, snapshot))
    return sampler, made


def test_actions_of_the_first_steps_are_uniform_within_bounds_and_among_the_allowed_choices():
    sampler, made = uniform_sampler(ActionSpec(1, (3, 2), masked=True), step=99)
    masks = np.tile([True, False, True, True, True], (20_000, 1))
    given, columns = sampler.sample(heads_for(made, 20_000, scale=5.0), masks, np.random.default_rng(3), False)
    shares = np.histogram(given.continuous, bins=8, range=(-1, 1))[0] / 20_000
    np.testing.assert_allclose(shares, 1 / 8, atol=0.01)  # all of them lie within [-1, 1]
    np.testing.assert_allclose(np.bincount(given.discrete[:, 0], minlength=3) / 20_000, [0.5, 0, 0.5], atol=0.02)
    np.testing.assert_allclose(np.bincount(given.discrete[:, 1]) / 20_000, [0.5, 0.5], atol=0.02)
    np.testing.assert_allclose(columns["log_probs"], math.log(0.5), rtol=1e-5)


@pytest.mark.parametrize("adopted", [{"step": 100}, {"snapshot": 3}])
def test_later_policies_and_snapshots_act_by_their_heads(adopted):
    sampler, made = uniform_sampler(ActionSpec(2), **adopted)
    heads = heads_for(made, 5)
    given, _ = sampler.sample(heads, None, np.random.default_rng(3), False)
    expected, _ = ActionSampler(made).sample(heads, None, np.random.default_rng(3), False)
    np.testing.assert_array_equal(given.continuous, expected.continuous)


def test_the_most_likely_action_is_the_heads_from_the_first_step_on():
    sampler, made = uniform_sampler(ActionSpec(2))
    heads = heads_for(made, 5)
    given, _ = sampler.sample(heads, None, np.random.default_rng(3), True)
    np.testing.assert_allclose(given.continuous, np.tanh(heads[:, :2]), rtol=1e-6)

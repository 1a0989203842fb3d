import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from headrace.stages.trainer.impala import Limits, clipped_rewards, vtrace


def by_definition(log_ratios, rewards, values, final, lengths, valueless, gammas, limits):
    """v_s = V_s + Σ_t γ^(t-s) (Π_{i<t} c_i) ρ_t (r_t + γ V_{t+1} - V_t), eq. 1 of the paper, term by term."""
    ratios = np.exp(log_ratios)
    targets, advantages = np.zeros_like(values), np.zeros_like(values)
    start = 0
    for k, length in enumerate(lengths):
        for s, gamma in enumerate(gammas):
            beyond = 0.0 if valueless[k, s] else final[k, s]
            v = [*values[start : start + length, s], beyond]
            of = []
            for t in range(length):
                total = v[t]
                for later in range(t, length):
                    product = 1.0
                    for i in range(t, later):
                        product *= limits.lambd * min(limits.c_bar, ratios[start + i])
                    rho = min(limits.rho_bar, ratios[start + later])
                    delta = rho * (rewards[start + later, s] + gamma * v[later + 1] - v[later])
                    total += gamma ** (later - t) * product * delta
                of.append(total)
            targets[start : start + length, s] = of
            for t, following in enumerate([*of[1:], beyond]):
                rho = min(limits.rho_bar, ratios[start + t])
                advantages[start + t, s] = rho * (rewards[start + t, s] + gamma * following - v[t])
        start += length
    return targets, advantages


@pytest.mark.lengthy
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    signals=st.integers(1, 3),
    rho_bar=st.sampled_from([0.5, 1.0, 3.0]),
    c_bar=st.sampled_from([0.5, 1.0, 2.0]),
    lambd=st.sampled_from([0.0, 0.9, 1.0]),
    seed=st.integers(0, 10_000),
)
@examples(25)
def test_targets_equal_the_papers_definition(lengths, signals, rho_bar, c_bar, lambd, seed):
    random = np.random.default_rng(seed)
    n, k = sum(lengths), len(lengths)
    rewards, values = random.normal(size=(2, n, signals))
    final, valueless = random.normal(size=(k, signals)), random.random((k, signals)) < 0.4
    given_ = (random.normal(size=n), rewards, values, final, np.array(lengths), valueless)
    gammas, limits = random.choice([0.0, 0.9, 1.0], signals), Limits(rho_bar, c_bar, lambd)
    targets, advantages = vtrace(*given_, gammas, limits)
    targets, advantages = by_definition(*given_, gammas, limits)
    np.testing.assert_allclose(targets, targets, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(advantages, advantages, rtol=1e-9, atol=1e-9)


def test_on_policy_its_targets_are_the_returns_of_the_rest_of_the_trajectory():
    # Remark 1 of the paper: Bellman's n-step targets.
    rewards, values = np.array([[1.0], [2.0], [4.0]]), np.array([[5.0], [6.0], [7.0]])
    targets, advantages = vtrace(
        np.zeros(3), rewards, values, np.array([[8.0]]), np.array([3]), np.array([[False]]), np.array([0.5]), Limits()
    )
    assert targets[:, 0].tolist() == [1 + 1 + 1 + 1, 2 + 2 + 2, 4 + 4]
    assert advantages[:, 0].tolist() == [4 - 5, 6 - 6, 8 - 7]


def test_a_ratio_beyond_all_numbers_counts_as_its_limit():
    one = np.ones((1, 1))
    targets, advantages = vtrace(
        np.array([1e6]), one, one, one, np.array([1]), np.array([[True]]), np.array([0.9]), Limits(2.0)
    )
    assert targets.tolist() == [[1.0]]
    assert advantages.tolist() == [[0.0]]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("abs_one", [-1.0, -0.5, 0.0, 1.0]),
        ("soft_asymmetric", [-1.5 * np.tanh(2), -1.5 * np.tanh(0.1), 0.0, 5 * np.tanh(0.6)]),
    ],
)
def test_rewards_are_clipped_as_the_key_says(how, expected):
    assert clipped_rewards(np.array([-10.0, -0.5, 0.0, 3.0]), how).tolist() == pytest.approx(expected)

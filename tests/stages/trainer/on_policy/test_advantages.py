import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from headrace.stages.trainer.ppo import advantages


def gae(rewards, values, final, lengths, terminated, gamma=0.5, lambd=0.5):
    """One signal, flat lists."""
    rewards, values, final = (np.array(c, np.float64)[:, None] for c in (rewards, values, final))
    result = advantages(
        rewards, values, final, np.array(lengths), np.array(terminated)[:, None], np.array([gamma]), lambd
    )
    return result[:, 0].tolist()


def test_a_terminated_trajectory_has_no_value_beyond_its_end():
    # δ = [1 + ½·2 - 4, 3 + 0 - 2] = [-2, 1]; A₁ = 1, A₀ = -2 + ¼·1
    assert gae([1, 3], [4, 2], [100], [2], [True]) == [-1.75, 1.0]


def test_a_cut_trajectory_bootstraps_from_the_value_of_its_final_observation():
    # δ = [-2, 3 + ½·8 - 2] = [-2, 5]; A₀ = -2 + ¼·5
    assert gae([1, 3], [4, 2], [8], [2], [False]) == [-0.75, 5.0]


def test_trajectories_packed_end_to_end_do_not_leak_into_each_other():
    both = gae([1, 3, 7, 1, 3], [4, 2, 6, 4, 2], [8, 2, 100], [2, 1, 2], [False, False, True])
    assert both == [-0.75, 5.0, 7 + 0.5 * 2 - 6, -1.75, 1.0]


def test_lambda_0_is_the_one_step_error_and_lambda_1_the_discounted_return_less_the_value():
    assert gae([1, 2, 4], [1, 1, 1], [0], [3], [True], lambd=0.0) == [0.5, 1.5, 3.0]
    assert gae([1, 2, 4], [1, 1, 1], [0], [3], [True], lambd=1.0) == [1 + 1 + 1 - 1, 2 + 2 - 1, 4 - 1]


def slow(rewards, values, final, lengths, valueless, gammas, lambd):
    """The definition, as loops: for each row, the sum over the rows that follow it."""
    result = np.zeros_like(rewards)
    start = 0
    for k, length in enumerate(lengths):
        for s, gamma in enumerate(gammas):
            v = [*values[start : start + length, s], 0.0 if valueless[k, s] else final[k, s]]
            for t in range(length):
                for later in range(t, length):
                    delta = rewards[start + later, s] + gamma * v[later + 1] - v[later]
                    result[start + t, s] += (gamma * lambd) ** (later - t) * delta
        start += length
    return result


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    signals=st.integers(1, 3),
    lambd=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    seed=st.integers(0, 10_000),
)
@examples(25)
def test_advantages_equal_those_of_a_double_loop(lengths, signals, lambd, seed):
    random = np.random.default_rng(seed)
    n, k = sum(lengths), len(lengths)
    rewards, values = random.normal(size=(2, n, signals))
    final = random.normal(size=(k, signals))
    valueless = random.random((k, signals)) < 0.4
    gammas = random.choice([0.0, 0.9, 0.99, 1.0], signals)
    arguments = (rewards, values, final, np.array(lengths, np.int32), valueless, gammas, lambd)
    np.testing.assert_allclose(advantages(*arguments), slow(*arguments), rtol=1e-9, atol=1e-9)


def test_each_signal_has_its_own_discount_and_its_own_end():
    # Two trajectories of two rows: one terminated, one truncated. The second signal goes on beyond termination.
    rewards = np.array([[1.0, 0.0], [2.0, 4.0], [1.0, 1.0], [0.0, 2.0]])
    values = np.array([[1.0, 2.0], [3.0, 4.0], [2.0, 0.0], [4.0, 8.0]])
    final = np.array([[10.0, 16.0], [20.0, 8.0]])
    terminated, ignores = np.array([True, False]), np.array([False, True])
    found = advantages(
        rewards, values, final, np.array([2, 2]), terminated[:, None] & ~ignores, np.array([0.5, 0.25]), 0.5
    )
    # First signal, γλ = ¼: δ = [1 + 1.5 - 1, 2 + 0 - 3] and [1 + 2 - 2, 0 + 10 - 4].
    assert found[:, 0].tolist() == [1.5 - 0.25, -1.0, 1 + 0.25 * 6, 6.0]
    # Second signal, γλ = ⅛: δ = [0 + 1 - 2, 4 + 4 - 4] and [1 + 2 - 0, 2 + 2 - 8].
    assert found[:, 1].tolist() == [-1 + 0.125 * 4, 4.0, 3 - 0.125 * 4, -4.0]


def test_a_nan_value_beyond_a_terminated_end_does_no_harm():
    assert gae([1, 3], [4, 2], [float("nan")], [2], [True]) == [-1.75, 1.0]

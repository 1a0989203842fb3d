"""Every formula against numbers worked out by hand, or slow loops in float64."""

import numpy as np
import pytest
import torch
from tensors import assert_close

from headrace.stages.trainer.sac import (
    coefficient_gradients,
    expected_values,
    half_squared_error,
    masked_mean,
    soft_values,
    taken_values,
)

B, S = 5, 2
BRANCHES = (3, 2)
RANDOM = np.random.default_rng(3)


def drawn(*shape):
    return torch.from_numpy(RANDOM.normal(size=shape))


def distribution(rows):
    """Probabilities [rows, 5] of two branches side by side."""
    parts = [RANDOM.dirichlet(np.ones(size), rows) for size in BRANCHES]
    return torch.from_numpy(np.concatenate(parts, axis=1))


def test_the_value_of_a_continuous_action_is_the_only_one_there_is():
    q = drawn(B, S, 1)
    assert_close(taken_values(q, ()), q[:, :, 0])
    assert_close(expected_values(q, None, 0), q[:, :, 0])


def test_the_value_of_choices_is_the_mean_over_branches_of_those_taken():
    q = drawn(B, S, 5)
    first, second = RANDOM.integers(0, 3, B), RANDOM.integers(0, 2, B)
    expected = np.empty((B, S))
    for row in range(B):
        for signal in range(S):
            expected[row, signal] = (q[row, signal, first[row]] + q[row, signal, 3 + second[row]]) / 2
    choices = [torch.from_numpy(first[:, None]), torch.from_numpy(3 + second[:, None])]
    np.testing.assert_allclose(taken_values(q, choices), expected)


def test_the_value_under_the_policy_is_the_mean_over_branches_of_expectations():
    q, p = drawn(B, S, 5), distribution(B)
    expected = np.zeros((B, S))
    for row in range(B):
        for signal in range(S):
            for choice in range(5):
                expected[row, signal] += float(p[row, choice] * q[row, signal, choice]) / 2
    np.testing.assert_allclose(expected_values(q, p, 2), expected)


@pytest.mark.parametrize(
    ("coefficients", "weights", "expected"),
    [
        # continuous: 5 - 0.2·(-1.5)
        ([0.2], [1.0], [5.3, 7.3]),
        # two branches: 5 + (0.5·0.6 + 0.1·0.4) / 2, from Σ π log π = -0.6 and -0.4
        ([0.5, 0.1], [0.5, 0.5], [5.17, 7.17]),
        # both: the entropies of either kind add to the value
        ([0.2, 0.5, 0.1], [1.0, 0.5, 0.5], [5.47, 7.47]),
    ],
    ids=["continuous", "discrete", "hybrid"],
)
def test_entropy_adds_to_the_soft_value_of_continuous_and_discrete_actions_alike(coefficients, weights, expected):
    all_negentropies = {1: [-1.5], 2: [-0.6, -0.4], 3: [-1.5, -0.6, -0.4]}
    soft = soft_values(
        torch.tensor([[5.0, 7.0]]),
        torch.tensor([all_negentropies[len(weights)]]),
        torch.tensor(coefficients),
        torch.tensor(weights),
    )
    assert_close(soft, torch.tensor([expected]))


def test_the_critics_loss_is_half_the_mean_square():
    values, targets = torch.tensor([[1.0, 2.0], [3.0, 9.0]]), torch.tensor([[0.0, 4.0], [3.0, 5.0]])
    assert half_squared_error(values, targets, None).item() == pytest.approx(0.5 * (1 + 4 + 0 + 16) / 4)
    assert half_squared_error(values, targets, torch.tensor([1.0, 0.0])).item() == pytest.approx(0.5 * (1 + 4) / 2)


def test_padding_counts_in_no_mean_whatever_it_holds():
    values, mask = drawn(6, 3, 2), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    expected = masked_mean(values, mask)
    values[mask == 0] = 1e9
    assert masked_mean(values, mask).item() == pytest.approx(expected.item())
    assert expected.item() == pytest.approx(values[mask == 1].mean().item())


def test_coefficients_fall_if_entropy_is_above_its_target_and_rise_below():
    negentropies = torch.tensor([[-1.0, -0.3], [-2.0, -0.1]])  # entropies 1.5 and 0.2 on average
    gradients = coefficient_gradients(negentropies, torch.tensor([-1.0, 0.5]), None)
    assert_close(gradients, torch.tensor([2.5, -0.3]))


def test_targets_of_coefficients_may_differ_by_row_and_padding_is_left_out():
    negentropies = torch.tensor([[-1.0], [-2.0], [-50.0]])
    targets = torch.tensor([[0.0], [1.0], [3.0]])
    gradients = coefficient_gradients(negentropies, targets, torch.tensor([1.0, 1.0, 0.0]))
    assert_close(gradients, torch.tensor([1.0]))

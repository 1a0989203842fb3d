"""Actions as policies draw them, as environments get them, and as networks take them in."""

import numpy as np
import pytest

from headrace.queues.specs import ActionSpec
from headrace.stages.policy.sampling import action_features, environment_actions, first_action_features, policy_actions

DRAWN = np.array([[0.3, -6.0, 1.5], [4.5, 0.6, -0.9]], np.float32)


def test_plain_gaussian_actions_are_clipped_at_3_and_divided_by_3():
    given = environment_actions(ActionSpec(3), DRAWN, squashed=False)
    np.testing.assert_allclose(given, [[0.1, -1.0, 0.5], [1.0, 0.2, -0.3]], rtol=1e-6)


def test_unbounded_dimensions_get_what_was_drawn():
    given = environment_actions(ActionSpec(3, unbounded=(0, 1)), DRAWN, squashed=False)
    np.testing.assert_allclose(given, [[0.3, -6.0, 0.5], [4.5, 0.6, -0.3]], rtol=1e-6)


def test_squashed_actions_are_copied_unchanged():
    drawn = np.tanh(DRAWN)
    given = environment_actions(ActionSpec(3, unbounded=(1,)), drawn, squashed=True)
    assert np.array_equal(given, drawn)
    assert not np.shares_memory(given, drawn)


@pytest.mark.parametrize("squashed", [False, True])
def test_policy_actions_invert_environment_actions(squashed):
    actions = ActionSpec(3, unbounded=(1,))
    given = np.random.default_rng(0).uniform(-1, 1, (20, 3)).astype(np.float32)
    drawn = policy_actions(actions, given, squashed)
    np.testing.assert_allclose(environment_actions(actions, drawn, squashed), given, atol=1e-6)


def test_features_are_the_continuous_values_and_a_one_hot_per_branch():
    actions = ActionSpec(1, (3, 2))
    features = action_features(actions, np.array([[0.5], [-1.0]], np.float32), np.array([[2, 0], [0, 1]], np.int32))
    assert features.dtype == np.float32
    assert features.tolist() == [[0.5, 0, 0, 1, 1, 0], [-1.0, 1, 0, 0, 0, 1]]


def test_before_the_first_action_stand_the_features_of_zeros():
    actions = ActionSpec(2, (3, 2))
    assert first_action_features(actions).tolist() == [0, 0, 1, 0, 0, 1, 0]
    zeros = action_features(actions, np.zeros((1, 2), np.float32), np.zeros((1, 2), np.int32))
    assert np.array_equal(first_action_features(actions), zeros[0])

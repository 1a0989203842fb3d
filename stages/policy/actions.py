"""Actions in their two forms: as the policy drew them, which streams hold, and as environments receive them."""

from __future__ import annotations

import numpy as np

from headrace.queues.messages import Array, Floats
from headrace.queues.specs import ActionSpec

ACTION_LIMIT = 3.0
"""A bounded action of a plain Gaussian policy leaves it as clip(a, -3, 3) / 3, as in ML-Agents."""


def environment_actions(actions: ActionSpec, drawn: Floats, squashed: bool) -> Floats:
    """Convert continuous actions [n, C] that a policy drew to those that the environment receives; a new array.

    Those of a plain Gaussian are clipped and scaled, except in unbounded dimensions. Those of a squashed (tanh) policy
    lie in [-1, 1] already, in all dimensions; SAC is refused where the environment has no bounds.
    """
    if squashed:
        return drawn.copy()
    scaled = np.clip(drawn, -ACTION_LIMIT, ACTION_LIMIT)
    scaled /= ACTION_LIMIT
    if actions.unbounded:
        unbounded = list(actions.unbounded)
        scaled[:, unbounded] = drawn[:, unbounded]
    return scaled


def policy_actions(actions: ActionSpec, given: Floats, squashed: bool) -> Floats:
    """The inverse of `environment_actions`, from those `given` [n, C] to those drawn; a new array."""
    if squashed:
        return given.copy()
    drawn = given * np.float32(ACTION_LIMIT)
    if actions.unbounded:
        unbounded = list(actions.unbounded)
        drawn[:, unbounded] = given[:, unbounded]
    return drawn


def action_features(actions: ActionSpec, continuous: Floats, discrete: Array) -> Floats:
    """Actions as inputs of networks, [n, C + choices]: environment-side continuous ones, then one-hots.

    Args:
        actions: the spec.
        continuous: [n, C] as the environment received them.
        discrete: [n, branches] choices.
    """
    n, c = len(continuous), actions.continuous_size
    features = np.zeros((n, c + actions.mask_size), np.float32)
    features[:, :c] = continuous
    rows, at = np.arange(n), c
    for branch, size in enumerate(actions.discrete_branches):
        features[rows, at + discrete[:, branch]] = 1.0
        at += size
    return features


def first_action_features(actions: ActionSpec) -> Floats:
    """The features in place of the action before an episode's first one, [C + choices]: zeros, and choice 0 per branch.

    They equal `action_features` of the zeros which trajectories hold there.
    """
    nothing = np.zeros((1, actions.continuous_size), np.float32)
    return action_features(actions, nothing, np.zeros((1, len(actions.discrete_branches)), np.int32)).reshape(-1)

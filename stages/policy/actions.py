"""Actions in their two forms: as the policy drew them (what streams hold), and as environments get them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from queues.messages import Array
from queues.specs import ActionSpec

Floats = NDArray[np.float32]

ACTION_LIMIT = 3.0
"""A bounded action of a plain Gaussian policy leaves it as clip(a, -3, 3) / 3, as ML-Agents has it."""


def environment_actions(actions: ActionSpec, drawn: Floats, squashed: bool) -> Floats:
    """What the environment gets for continuous actions [n, C] that a policy drew; a new array.

    Those of a plain Gaussian are clipped and scaled, but for unbounded dimensions, which get what was drawn. Those of a
    squashed (tanh) policy lie in [-1, 1] already, in all dimensions: beyond it can't reach, so where the environment
    has no bounds SAC is refused.
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
    """What a policy would have to draw for the environment to get `given` [n, C]: the inverse; a new array."""
    if squashed:
        return given.copy()
    drawn = given * np.float32(ACTION_LIMIT)
    if actions.unbounded:
        unbounded = list(actions.unbounded)
        drawn[:, unbounded] = given[:, unbounded]
    return drawn


def action_features(actions: ActionSpec, continuous: Floats, discrete: Array) -> Floats:
    """Actions as networks take them in, [n, C + choices]: environment-side continuous ones, then one-hots.

    Args:
        actions: the spec.
        continuous: [n, C] as the environment got them.
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
    """What stands for the action before an episode's first one, [C + choices]: zeros, and choice 0 of each branch.

    That is what `action_features` makes of the zeros which trajectories hold there.
    """
    nothing = np.zeros((1, actions.continuous_size), np.float32)
    return action_features(actions, nothing, np.zeros((1, len(actions.discrete_branches)), np.int32)).reshape(-1)

"""Actions on their way to Unity, and what a behaviour says of those that it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from queues.specs import ActionSpec, BehaviorSpec
from stages.unity.errors import UnityRefused
from stages.unity.messages import ListAgentActionProto

_CONTINUOUS = 1
"""`SpaceTypeProto` of old packages, whose behaviours have either kind of actions."""


def action_spec(brain: Any, who: str) -> ActionSpec:
    """What a behaviour takes, of its `BrainParametersProto`.

    Packages before 2.0 fill other fields than today's.

    Raises:
        UnityRefused: if the numbers contradict each other.
    """
    stated = brain.action_spec
    continuous, branches = stated.num_continuous_actions, tuple(stated.discrete_branch_sizes)
    if not continuous and not stated.num_discrete_actions:
        sizes = tuple(brain.vector_action_size_deprecated)
        if brain.vector_action_space_type_deprecated == _CONTINUOUS:
            continuous, branches = (sizes[0] if sizes else 0), ()
        else:
            branches = sizes
    elif stated.num_discrete_actions != len(branches):
        raise UnityRefused(
            f"{who}: announces {stated.num_discrete_actions} discrete actions and the sizes of {len(branches)} "
            f"({list(branches)}); expected one size for each"
        )
    if continuous < 0 or any(size < 1 for size in branches):
        raise UnityRefused(
            f"{who}: announces {continuous} continuous actions and discrete branches of sizes {list(branches)}; "
            "expected at least 1 choice in each branch: look at Actions in its Behavior Parameters"
        )
    return ActionSpec(continuous, branches, masked=bool(branches))


def action_protos(spec: BehaviorSpec, continuous: NDArray[np.float32], discrete: NDArray[np.int32]) -> Any:
    """The actions of d agents as a `ListAgentActionProto`, in the order of the rows.

    Args:
        spec: of the behaviour.
        continuous: [d, continuous_size].
        discrete: [d, branches].

    Raises:
        ValueError: if the arrays are not of these shapes.
    """
    actions = spec.actions
    d = len(continuous)
    expected = (d, actions.continuous_size), (d, len(actions.discrete_branches))
    if (continuous.shape, discrete.shape) != expected:
        raise ValueError(
            f"{spec.behavior_id}: actions of shapes {continuous.shape} and {discrete.shape}, expected {expected[0]} "
            f"and {expected[1]}"
        )
    protos = ListAgentActionProto()
    add = protos.value.add
    # Packages before 2.0 read the deprecated vector, where choices are numbers like all others.
    if not actions.discrete_branches:
        for values in continuous.tolist():
            add(continuous_actions=values, vector_actions_deprecated=values)
    else:
        for values, choices in zip(continuous.tolist(), discrete.tolist(), strict=True):
            add(continuous_actions=values, discrete_actions=choices, vector_actions_deprecated=values + choices)
    return protos

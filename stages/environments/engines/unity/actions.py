"""Converts a behaviour's action spec from Unity's announcement, and actions to messages for Unity."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.queues.specs import ActionSpec, BehaviorSpec
from headrace.stages.environments.engines.errors import GameRefused
from headrace.stages.environments.engines.unity.messages import ListAgentActionProto

_CONTINUOUS = 1
"""Value of `SpaceTypeProto` for continuous actions, in packages whose behaviours have only one kind of action."""
_SHORT_CHOICES = 128
"""Maximum number of choices in a branch if each choice takes one byte."""


def action_spec(brain: Any, owner: str) -> ActionSpec:
    """Return the action spec of a behaviour's `BrainParametersProto`, whose fields differ in packages before 2.0.

    Raises:
        GameRefused: if the numbers contradict each other.
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
        raise GameRefused(
            f"{owner}: announces {stated.num_discrete_actions} discrete actions, but sizes for {len(branches)} "
            f"({list(branches)}); expected one size for each"
        )
    if continuous < 0 or any(size < 1 for size in branches):
        raise GameRefused(
            f"{owner}: announces {continuous} continuous actions and discrete branches of sizes {list(branches)}; "
            "expected at least 1 choice in each branch: check Actions in its Behavior Parameters"
        )
    return ActionSpec(continuous, branches, masked=bool(branches))


def action_protos(spec: BehaviorSpec, continuous: NDArray[np.float32], discrete: NDArray[np.int32]) -> Any:
    """Return the actions of d agents as a `ListAgentActionProto`, in the order of the rows.

    Args:
        spec: the behaviour's spec.
        continuous: [d, continuous_size] continuous actions.
        discrete: [d, branches] the choice in each branch.

    Raises:
        ValueError: if the arrays have the wrong shapes, or a choice does not exist in its branch.
    """
    actions = spec.actions
    d = len(continuous)
    expected = (d, actions.continuous_size), (d, len(actions.discrete_branches))
    if (continuous.shape, discrete.shape) != expected:
        raise ValueError(
            f"{spec.behavior_id}: actions of shapes {continuous.shape} and {discrete.shape}; expected {expected[0]} "
            f"and {expected[1]}"
        )
    if actions.discrete_branches:
        _check_choices(spec, discrete)
    if max(actions.discrete_branches, default=0) > _SHORT_CHOICES:
        return _one_by_one(continuous, discrete)
    return _Pattern.of(actions).filled(continuous, discrete)


def _check_choices(spec: BehaviorSpec, discrete: NDArray[np.int32]) -> None:
    branches = spec.actions.discrete_branches
    wrong = (discrete < 0) | (discrete >= np.array(branches))
    if wrong.any():
        row, branch = (int(index) for index in np.argwhere(wrong)[0])
        raise ValueError(
            f"{spec.behavior_id}: choice {discrete[row, branch]} of branch {branch} in row {row}; that branch has the "
            f"choices 0 to {branches[branch] - 1}"
        )


def _one_by_one(continuous: NDArray[np.float32], discrete: NDArray[np.int32]) -> Any:
    protos = ListAgentActionProto()
    for values, choices in zip(continuous.tolist(), discrete.tolist(), strict=True):
        # Packages before 2.0 read the deprecated vector, in which choices are floats too.
        protos.value.add(
            continuous_actions=values, discrete_actions=choices, vector_actions_deprecated=values + choices
        )
    return protos


class _Pattern:
    """The serialised actions of one agent, as a pattern into which the actions of all agents are written together.

    As long as each choice takes one byte, the agents' bytes differ only in the actions. Filling in messages agent by
    agent takes three times as long. Changing one field at a time shows where the fields are.
    """

    def __init__(self, actions: ActionSpec) -> None:
        continuous = np.zeros((1, actions.continuous_size), np.float32)
        discrete = np.zeros((1, len(actions.discrete_branches)), np.int32)
        zeros = _one_by_one(continuous, discrete)
        self._bytes = _serialised(zeros)
        other = np.full(actions.log_prob_size, 0x01010101, "<u4").view("<f4").tolist()  # floats without a zero byte
        self._continuous = self._changed(zeros, "continuous_actions", other[: actions.continuous_size])
        self._discrete = self._changed(zeros, "discrete_actions", [1] * len(actions.discrete_branches))
        self._deprecated = self._changed(zeros, "vector_actions_deprecated", other)

    @staticmethod
    @lru_cache(maxsize=256)
    def of(actions: ActionSpec) -> _Pattern:
        """Return the pattern of a behaviour's actions."""
        return _Pattern(actions)

    def filled(self, continuous: NDArray[np.float32], discrete: NDArray[np.int32]) -> Any:
        """Return the `ListAgentActionProto` of d agents."""
        rows = np.tile(self._bytes, (len(continuous), 1))
        numbers = np.concatenate((continuous, discrete), axis=1, dtype="<f4", casting="same_kind")
        rows[:, self._deprecated] = numbers.view(np.uint8)
        rows[:, self._continuous] = numbers[:, : continuous.shape[1]].view(np.uint8)
        rows[:, self._discrete] = discrete
        return ListAgentActionProto.FromString(rows.tobytes())

    def _changed(self, zeros: Any, field: str, values: list[float]) -> slice:
        changed = ListAgentActionProto.FromString(zeros.SerializeToString())
        getattr(changed.value[0], field)[:] = values
        at = np.flatnonzero(_serialised(changed) != self._bytes)
        return slice(int(at[0]), int(at[-1]) + 1) if len(at) else slice(0, 0)


def _serialised(protos: Any) -> NDArray[np.uint8]:
    return np.frombuffer(protos.SerializeToString(), np.uint8)

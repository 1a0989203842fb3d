"""Action spaces as columns, and the conversion of decisions to the environment's actions.

Boxes become continuous actions, and discrete spaces become branches. A Dict or Tuple of them, even a nested one,
becomes both kinds side by side (hybrid actions), in the space's own order. Each part of the action is a head with a
name: the part's key in a Dict or index in a Tuple, joined by dots if nested (`arm.grip`), and followed by a number if
the part has several heads (`arm.0`). Observations are in `observations`, masks in `masks`.

Axis letters: n instances.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from headrace.queues.messages import ActionBatch, Array
from headrace.queues.specs import ActionSpec
from headrace.stages.action_units import box_units
from headrace.stages.environments.spaces.own_space import BoxSpace, ChoiceSpace, ComposedSpace, OwnSpace
from headrace.stages.errors import StageError


@dataclass(frozen=True, slots=True)
class ActionMapping:
    """An action space's columns, and their conversion to actions."""

    spec: ActionSpec
    """The action spec, never `masked`: `AgentMasks` determines whether actions are masked."""
    to_environment: Callable[[ActionBatch], Any]
    """Converts columns [n, …] to n actions, batched as `gymnasium.vector` batches the space."""


def action_mapping(space: OwnSpace, num_envs: int, owner: str) -> ActionMapping:
    """Map an action space to columns: Box to continuous actions, discrete spaces to branches, composed spaces to both.

    Args:
        space: the space of a single instance.
        num_envs: the number of instances, n.
        owner: the environment's name, used in messages.

    Raises:
        StageError: if the space has any other type.
    """
    if isinstance(space, ComposedSpace):
        return _composed(space, num_envs, owner)
    if isinstance(space, BoxSpace):
        return _box_actions(space, num_envs)
    if isinstance(space, ChoiceSpace):
        return _branch_actions(space)
    raise StageError(
        f"{owner}: a policy can't choose actions in a {space.kind} space; expected Box, Discrete, MultiDiscrete, "
        "MultiBinary, or a Dict or Tuple of these. Add a gymnasium.ActionWrapper to environment.wrappers that "
        "converts the actions to one of these"
    )


def _composed(space: ComposedSpace, num_envs: int, owner: str) -> ActionMapping:
    """Map several spaces to columns side by side."""
    parts = space.parts
    mappings = {key: action_mapping(part, num_envs, owner) for key, part in parts.items()}
    specs = [mapping.spec for mapping in mappings.values()]
    if not any(spec.log_prob_size for spec in specs):
        raise StageError(f"{owner}: its action space has no actions")
    continuous = _slices([spec.continuous_size for spec in specs])
    discrete = _slices([len(spec.discrete_branches) for spec in specs])
    pieces = list(zip(parts, mappings.values(), continuous, discrete, strict=True))

    def to_environment(actions: ActionBatch) -> Any:
        of_parts = {
            key: mapping.to_environment(ActionBatch(actions.continuous[:, c], actions.discrete[:, d]))
            for key, mapping, c, d in pieces
        }
        return of_parts if space.kind == "Dict" else tuple(of_parts.values())

    spec = ActionSpec(
        continuous_size=sum(spec.continuous_size for spec in specs),
        discrete_branches=tuple(branch for spec in specs for branch in spec.discrete_branches),
        unbounded=tuple(c.start + i for spec, c in zip(specs, continuous, strict=True) for i in spec.unbounded),
        continuous_names=tuple(
            name
            for key, s in zip(parts, specs, strict=True)
            for name in _below(key, s.continuous_names, s.continuous_size)
        ),
        branch_names=tuple(
            name
            for key, s in zip(parts, specs, strict=True)
            for name in _below(key, s.branch_names, len(s.discrete_branches))
        ),
    )
    return ActionMapping(spec, to_environment)


def _below(key: Any, names: Sequence[str], size: int) -> list[str]:
    """Return the names of the heads under a key."""
    if names:
        return [f"{key}.{name}" for name in names]
    return [f"{key}"] if size == 1 else [f"{key}.{i}" for i in range(size)]


def _slices(sizes: Sequence[int]) -> list[slice]:
    ends = list(accumulate(sizes))
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _branch_actions(space: ChoiceSpace) -> ActionMapping:
    start, shape, dtype = space.start if space.start.any() else None, space.shape, space.dtype

    def to_environment(actions: ActionBatch) -> Array:
        chosen: Array = actions.discrete.reshape(-1, *shape)
        return chosen.astype(dtype) if start is None else (chosen + start).astype(dtype)

    branches = tuple(int(n) for n in space.sizes.flat)
    return ActionMapping(ActionSpec(discrete_branches=branches), to_environment)


def _box_actions(space: BoxSpace, num_envs: int) -> ActionMapping:
    """Convert to the Box's units; a dimension that is not scaled counts as unbounded."""
    shape, dtype = space.shape, space.dtype
    units = box_units(space.low, space.high, space.clipped)
    whole = bool(units.whole.any())
    kind = np.dtype(np.float64) if whole else dtype
    # Full arrays [n, size], because broadcasting costs more than the arithmetic.
    halves, middles, lows, highs = (np.tile(row.astype(kind), (num_envs, 1)) for row in units[:4])

    def to_environment(actions: ActionBatch) -> Array:
        values: Array = actions.continuous * halves
        values += middles
        # Even rounding can cross a bound, which some environments reject.
        np.minimum(values, highs, out=values)
        np.maximum(values, lows, out=values)
        if whole:
            np.rint(values, out=values)
        return values.reshape(num_envs, *shape).astype(dtype, copy=False)

    unbounded = tuple(int(i) for i in np.flatnonzero(~units.scaled))
    return ActionMapping(ActionSpec(continuous_size=len(units.scaled), unbounded=unbounded), to_environment)

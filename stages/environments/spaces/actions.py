"""Action spaces as columns, and the conversion of decisions to actions of the environment.

Boxes become continuous actions, discrete spaces branches; Dict and Tuple of them, also nested, become both side by side
(hybrid actions), in the space's own order. Each part of such an action is a head with a name: its key in a Dict, its
index in a Tuple, with dots where they are nested (`arm.grip`), and a number behind where a part is several (`arm.0`).
Observations are in `observations`.

Axis letters: n instances.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch, Array
from headrace.queues.specs import ActionSpec
from headrace.stages.environments.spaces.own_space import BoxSpace, ChoiceSpace, ComposedSpace, OwnSpace
from headrace.stages.errors import StageError

_AS_GOOD_AS_INFINITE = 1e30
"""Bounds like float32's largest number mean "none"; scaling to them would overflow."""


@dataclass(frozen=True, slots=True)
class ActionMapping:
    """The columns of an action space, and their conversion."""

    spec: ActionSpec
    """Never `masked`: only the infos of the first reset show whether there are masks."""
    to_environment: Callable[[ActionBatch], Any]
    """From columns [n, …] to n actions, batched as `gymnasium.vector` batches the space."""
    maskable: bool
    """True if an info `action_mask` has the meaning of our masks."""
    parts: Mapping[Any, ActionMapping] = field(default_factory=dict)
    """Of a Dict or Tuple, the mappings of what is in it, by key; their columns stand side by side."""


def action_mapping(space: OwnSpace, num_envs: int, owner: str) -> ActionMapping:
    """Map an action space to columns: continuous ones for Box, branches for discrete spaces, both for composed ones.

    Args:
        space: the space of a single instance.
        num_envs: n.
        owner: the environment's name, for messages.

    Raises:
        StageError: if the space is of another type.
    """
    if isinstance(space, ComposedSpace):
        return _composed(space, num_envs, owner)
    if isinstance(space, BoxSpace):
        return _box_actions(space, num_envs)
    if isinstance(space, ChoiceSpace):
        return _branch_actions(space)
    raise StageError(
        f"{owner}: actions of a {space.kind} space can't be decided; expected Box, Discrete, MultiDiscrete, "
        "MultiBinary, or Dict and Tuple of them. A gymnasium.ActionWrapper that makes one of these of it can be put "
        "under environment.wrappers"
    )


def action_masks(
    infos: Mapping[str, Any], num_envs: int, mapping: ActionMapping, key: str = "action_mask"
) -> NDArray[np.bool_]:
    """Return the masks [n, choices] in the infos of a vector environment; instances without one allow everything.

    One mask is an array with an entry per choice, or a tuple of such arrays, one per branch (None stands for a part
    without branches). Of a Dict it may be a map of these by the space's keys, as `Dict.sample` takes it; a part whose
    key is missing, or is None, allows everything.

    Args:
        infos: of the vector environment.
        num_envs: n.
        mapping: of the action space.
        key: of the masks in the infos.

    Raises:
        TypeError: if a mask is a map, and the action space is none.
        ValueError: if a mask does not have an entry per choice, or there is no part of that name.
    """
    value, width = infos.get(key), mapping.spec.mask_size
    if value is None:
        return np.ones((num_envs, width), np.bool_)
    present = infos.get(f"_{key}")
    if isinstance(value, Mapping):
        _check_keys(value, mapping)
        of_parts = [action_masks(value, num_envs, part, name) for name, part in mapping.parts.items()]
        return np.concatenate(of_parts, axis=1)
    if isinstance(value, tuple | list):  # an array [n, choices] per branch
        masks = np.concatenate([np.asarray(branch, np.bool_) for branch in value if branch is not None], axis=1)
    elif value.dtype == object:  # an instance each: a tuple with an array per branch
        masks = np.ones((num_envs, width), np.bool_)
        for i, mask in enumerate(value):
            if mask is not None:
                masks[i] = flat_mask(mask, mapping)
    else:
        masks = np.asarray(value).reshape(num_envs, width).astype(np.bool_)
    if masks.shape != (num_envs, width):
        raise ValueError(f"got shape {masks.shape} for {num_envs} instances")
    if present is not None and not present.all():
        masks[~present] = True
    return masks


def flat_mask(mask: Any, mapping: ActionMapping) -> NDArray[np.bool_]:
    """Return the mask [choices] of one agent, in any of the forms of `action_masks`; raises as that for maps."""
    if isinstance(mask, Mapping):
        _check_keys(mask, mapping)
        allowed = {name: np.ones(part.spec.mask_size, np.bool_) for name, part in mapping.parts.items()}
        own = {name: flat_mask(mask[name], mapping.parts[name]) for name in mask if mask[name] is not None}
        return np.concatenate([*{**allowed, **own}.values()])
    if isinstance(mask, tuple | list) and mask and not np.isscalar(mask[0]):
        return np.concatenate([flat_mask(part, mapping) for part in mask if part is not None])
    return np.ravel(np.asarray(mask)).astype(np.bool_)


def branches_without_choice(masks: NDArray[np.bool_], branches: tuple[int, ...]) -> NDArray[np.bool_]:
    """[n, branches] true where a mask [n, choices] forbids every choice of a branch."""
    forbidden: NDArray[np.bool_] = ~np.logical_or.reduceat(masks, _branch_starts(branches), axis=1)
    return forbidden


@lru_cache(maxsize=256)
def _branch_starts(branches: tuple[int, ...]) -> NDArray[np.int64]:
    return np.cumsum((0, *branches[:-1]))


def _check_keys(masks: Mapping[str, Any], mapping: ActionMapping) -> None:
    """Check that the masks of a map are of parts of the action space; beside `arm` a vector environment has `_arm`."""
    if not mapping.parts:
        raise TypeError("got a map where the action space is no Dict; expected an array, or a tuple of one per branch")
    ours = [name for name in masks if not (str(name).startswith("_") and str(name)[1:] in masks)]
    unknown = [repr(name) for name in ours if name not in mapping.parts]
    if unknown:
        raise ValueError(f"the action space has no {', '.join(unknown)}, but {', '.join(map(repr, mapping.parts))}")


def _composed(space: ComposedSpace, num_envs: int, owner: str) -> ActionMapping:
    """Map several spaces to columns side by side."""
    parts = space.parts
    mappings = {key: action_mapping(part, num_envs, owner) for key, part in parts.items()}
    specs = [mapping.spec for mapping in mappings.values()]
    if not any(spec.log_prob_size for spec in specs):
        raise StageError(f"{owner}: its action space has nothing to decide")
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
    maskable = all(m.maskable for m in mappings.values() if m.spec.discrete_branches)
    return ActionMapping(spec, to_environment, maskable, mappings)


def _below(key: Any, names: Sequence[str], size: int) -> list[str]:
    """Names of the heads under a key."""
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
    return ActionMapping(ActionSpec(discrete_branches=branches), to_environment, space.kind != "MultiBinary")


def _box_actions(space: BoxSpace, num_envs: int) -> ActionMapping:
    """Scale [-1, 1] affinely to [low, high] in each bounded dimension; others get the raw value.

    A dimension that is bounded on one side only counts as unbounded, but is clipped to that side.
    """
    shape, dtype = space.shape, space.dtype
    whole = not np.issubdtype(dtype, np.floating)
    kind = np.dtype(np.float64) if whole else dtype
    low, high = np.ravel(space.low).astype(np.float64), np.ravel(space.high).astype(np.float64)
    with np.errstate(over="ignore"):
        extent = high - low
    bounded = np.isfinite(low) & np.isfinite(high) & (extent < _AS_GOOD_AS_INFINITE)
    half = np.where(bounded, extent / 2, 1.0)
    middle = np.where(bounded, low + half, 0.0)
    # Whole arrays [n, size], because broadcasting costs more than the arithmetic.
    halves, middles, lows, highs = (np.tile(row.astype(kind), (num_envs, 1)) for row in (half, middle, low, high))

    def to_environment(actions: ActionBatch) -> Array:
        values: Array = actions.continuous * halves
        values += middles
        # Rounding alone can step over a bound, which some environments refuse.
        np.minimum(values, highs, out=values)
        np.maximum(values, lows, out=values)
        if whole:
            np.rint(values, out=values)
        return values.reshape(num_envs, *shape).astype(dtype, copy=False)

    unbounded = tuple(int(i) for i in np.flatnonzero(~bounded))
    return ActionMapping(ActionSpec(continuous_size=len(bounded), unbounded=unbounded), to_environment, maskable=False)

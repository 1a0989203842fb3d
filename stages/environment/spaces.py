"""Gymnasium's spaces as columns: what a space looks like in a spec, and how values get from one to the other.

An observation space becomes a tuple of parts, each a spec and an extractor; an action space becomes a spec
and a function from columns to what the environment takes. Images, Dict and Tuple observations will be more
extractors and more parts, and nothing else. How an environment is stepped is in `gymnasium_group`.

Axis letters: n instances, d decisions, k observations of any number of instances.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from queues.messages import Array
from queues.specs import ActionSpec, ObservationSpec
from stages.environment.protocol import ActionBatch
from stages.errors import StageError

Space = spaces.Space[Any]
Extractor = Callable[[Any], Array]
"""From k observations, batched as `gymnasium.vector` does, to a *new* array [k, *shape] as the spec says."""

_AS_GOOD_AS_INFINITE = 1e30
"""Bounds like float32's largest number mean "none"; scaling to them would overflow."""


@dataclass(frozen=True, slots=True)
class ObservationPart:
    """One observation of an agent: what it looks like, and how it is taken from what the environment gave."""

    spec: ObservationSpec
    extract: Extractor


@dataclass(frozen=True, slots=True)
class ActionMapping:
    """What an agent decides, and what the environment is given for it."""

    spec: ActionSpec
    """Never `masked`: whether there are masks shows only in the infos of the first reset."""
    to_environment: Callable[[ActionBatch], Array]
    """From columns [n, …] to n actions, batched as `gymnasium.vector` batches the space."""
    maskable: bool
    """Whether an info `action_mask` has the meaning of our masks."""


def observation_parts(space: Space, owner: str) -> tuple[ObservationPart, ...]:
    """The columns of an observation space: vectors for Box, one-hots for Discrete and MultiDiscrete.

    Args:
        space: the space of a single instance.
        owner: the environment's name, for messages.

    Raises:
        StageError: if the space is not one of those, or an image.
    """
    if isinstance(space, spaces.Box):
        return (_box_part(space, owner),)
    if isinstance(space, spaces.Discrete):
        return (_one_hot_part(np.array([space.n]), np.array([space.start])),)
    if isinstance(space, spaces.MultiDiscrete):
        return (_one_hot_part(space.nvec.ravel(), np.ravel(space.start)),)
    if isinstance(space, spaces.MultiBinary):
        return (_flat_part(int(np.prod(space.shape)), np.dtype(np.float32)),)
    raise StageError(
        f"{owner}: observations of a {type(space).__name__} space are not supported yet; expected Box, "
        "Discrete, MultiDiscrete or MultiBinary. A wrapper in an environment.factory can make one of these "
        "of it, such as gymnasium.wrappers.FlattenObservation"
    )


def action_mapping(space: Space, num_envs: int, owner: str) -> ActionMapping:
    """The columns of an action space: continuous ones for Box, branches for the discrete spaces.

    Args:
        space: the space of a single instance.
        num_envs: n.
        owner: the environment's name, for messages.

    Raises:
        StageError: if the space is not one of those.
    """
    if isinstance(space, spaces.Box):
        return _box_actions(space, num_envs)
    if isinstance(space, spaces.Discrete):
        return _discrete_actions(int(space.n), int(space.start), np.dtype(space.dtype))
    if isinstance(space, spaces.MultiDiscrete):
        return _branch_actions(space.nvec, np.asarray(space.start), np.dtype(space.dtype), maskable=True)
    if isinstance(space, spaces.MultiBinary):
        two = np.full(space.shape, 2)
        return _branch_actions(two, np.zeros_like(two), np.dtype(space.dtype), maskable=False)
    raise StageError(
        f"{owner}: actions of a {type(space).__name__} space are not supported yet; expected Box, Discrete, "
        "MultiDiscrete or MultiBinary. A wrapper in an environment.factory can make one of these of it"
    )


def action_masks(infos: Mapping[str, Any], num_envs: int, width: int) -> NDArray[np.bool_]:
    """The masks [n, width] in the infos of a vector environment; instances that gave none may do everything.

    One mask is an array with an entry per choice, or a tuple of such arrays, one per branch.

    Raises:
        ValueError: if a mask does not have `width` entries.
    """
    value = infos.get("action_mask")
    if value is None:
        return np.ones((num_envs, width), np.bool_)
    given = infos.get("_action_mask")
    if isinstance(value, tuple | list):  # an array [n, choices] per branch
        masks = np.concatenate([np.asarray(branch, np.bool_) for branch in value], axis=1)
    elif value.dtype == object:  # an instance each: a tuple with an array per branch
        masks = np.ones((num_envs, width), np.bool_)
        for i, mask in enumerate(value):
            if mask is not None:
                masks[i] = _flat_mask(mask)
    else:
        masks = np.asarray(value).reshape(num_envs, width).astype(np.bool_)
    if masks.shape != (num_envs, width):
        raise ValueError(f"got shape {masks.shape} for {num_envs} instances")
    if given is not None and not given.all():
        masks[~given] = True
    return masks


def _flat_mask(mask: Any) -> NDArray[np.bool_]:
    if isinstance(mask, tuple | list):
        return np.concatenate([_flat_mask(part) for part in mask])
    return np.ravel(np.asarray(mask, np.bool_))


def _box_part(space: spaces.Box, owner: str) -> ObservationPart:
    if len(space.shape) == 3:
        raise StageError(
            f"{owner}: observations of shape {space.shape} are taken for images, which are not supported "
            "yet. If they are none, or small, wrap the environment in "
            "gymnasium.wrappers.FlattenObservation in an environment.factory"
        )
    dtype = np.dtype(space.dtype)
    if np.issubdtype(dtype, np.floating):
        dtype = np.dtype(np.float32)
    return _flat_part(int(np.prod(space.shape)), dtype)


def _flat_part(size: int, dtype: np.dtype[Any]) -> ObservationPart:
    def extract(batch: Any) -> Array:
        values: Array = np.asarray(batch)
        # The copy that astype makes also keeps us apart from an environment that writes over its arrays.
        return values.astype(dtype).reshape(len(values), size)

    return ObservationPart(ObservationSpec("observation", (size,), dtype.name), extract)


def _one_hot_part(sizes: NDArray[Any], start: NDArray[Any]) -> ObservationPart:
    width = int(sizes.sum())
    first = np.cumsum(sizes) - sizes - start

    def extract(batch: Any) -> Array:
        values = np.asarray(batch)
        hot = values.reshape(len(values), len(sizes)) + first
        columns = np.zeros((len(values), width), np.float32)
        columns[np.arange(len(values))[:, None], hot] = 1.0
        return columns

    return ObservationPart(ObservationSpec("observation", (width,), "float32"), extract)


def _discrete_actions(n: int, start: int, dtype: np.dtype[Any]) -> ActionMapping:
    def to_environment(actions: ActionBatch) -> Array:
        chosen: Array = actions.discrete[:, 0].astype(dtype)
        return np.add(chosen, start, dtype=dtype) if start else chosen

    return ActionMapping(ActionSpec(discrete_branches=(n,)), to_environment, maskable=True)


def _branch_actions(nvec: NDArray[Any], start: NDArray[Any], dtype: np.dtype[Any], *, maskable: bool) -> ActionMapping:
    def to_environment(actions: ActionBatch) -> Array:
        chosen: Array = actions.discrete.reshape(-1, *nvec.shape) + start
        return chosen.astype(dtype)

    return ActionMapping(ActionSpec(discrete_branches=tuple(int(n) for n in nvec.flat)), to_environment, maskable)


def _box_actions(space: spaces.Box, num_envs: int) -> ActionMapping:
    """Scale [-1, 1] affinely to [low, high] in each bounded dimension; others get the raw value.

    What is bounded on one side only counts as unbounded, but is clipped to that side.
    """
    whole = not np.issubdtype(space.dtype, np.floating)
    kind = np.dtype(np.float64) if whole else np.dtype(space.dtype)
    low, high = np.ravel(space.low).astype(np.float64), np.ravel(space.high).astype(np.float64)
    with np.errstate(over="ignore"):
        extent = high - low
    bounded = np.ravel(space.bounded_below & space.bounded_above) & (extent < _AS_GOOD_AS_INFINITE)
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
        values = values.reshape(num_envs, *space.shape)
        return values.astype(space.dtype, copy=False)

    unbounded = tuple(int(i) for i in np.flatnonzero(~bounded))
    return ActionMapping(ActionSpec(continuous_size=len(bounded), unbounded=unbounded), to_environment, maskable=False)

"""The environment's units of continuous actions, and the conversion of a policy's numbers to these units.

A policy acts between -1 and 1, or in the environment's own units where an action is not scaled. Environment stages,
`load_policy`, the policy server and exported models all convert by `ActionUnits`. The bounds are those of the
environment's action space, which a policy's file contains (`BehaviorSpec.spaces`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Array
from headrace.queues.specs import BehaviorSpec
from headrace.stages.errors import StageError

AS_GOOD_AS_INFINITE = 1e30
"""Magnitude from which a bound, such as float32's largest number, counts as no bound, because scaling to it would
overflow."""


class ActionUnits(NamedTuple):
    """The units of C continuous actions: the environment receives clip(a * half + middle, low, high).

    Where the environment takes integers, it receives the nearest one, and of two equally near ones the even one.
    """

    half: NDArray[np.float64]
    """[C] half the distance between the bounds; 1 for an action that is not scaled."""
    middle: NDArray[np.float64]
    """[C] the middle between the bounds; 0 for an action that is not scaled."""
    low: NDArray[np.float64]
    """[C] the lower bounds; -inf for no bound."""
    high: NDArray[np.float64]
    scaled: NDArray[np.bool_]
    """[C] True for actions that policies choose between -1 and 1."""
    whole: NDArray[np.bool_]
    """[C] True for actions that the environment takes as integers."""

    @property
    def identity(self) -> bool:
        """True if the environment receives the policy's numbers unchanged."""
        clipped = ~self.scaled & (np.isfinite(self.low) | np.isfinite(self.high))
        return not ((self.half != 1) | (self.middle != 0) | clipped | self.whole).any()


def box_units(low: Array, high: Array, clipped: bool = False) -> ActionUnits:
    """Return the units of a Box, flattened.

    Bounded dimensions are scaled. A dimension with one bound is not scaled, but is clipped at that bound.

    Args:
        low: [*shape] the Box's lower bounds, in its dtype.
        high: [*shape] its upper bounds.
        clipped: True to scale no dimension, but to clip all dimensions at their bounds.
    """
    whole = np.full(low.size, not np.issubdtype(low.dtype, np.floating))
    low, high = np.ravel(low).astype(np.float64), np.ravel(high).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        extent = high - low
        scaled = np.isfinite(low) & np.isfinite(high) & (extent < AS_GOOD_AS_INFINITE) & (not clipped)
        half = np.where(scaled, extent / 2, 1.0)
        middle = np.where(scaled, low + half, 0.0)
    return ActionUnits(half, middle, low, high, scaled, whole)


def action_units(spec: BehaviorSpec) -> ActionUnits:
    """Return the units of a behaviour's continuous actions; without an action space, those of the policy.

    Raises:
        StageError: if the spec's action space has a different number of continuous actions.
        ValueError, KeyError, TypeError: if the space is not a valid description.
    """
    actions, space = spec.actions, (spec.spaces or {}).get("action")
    if space is None:
        bound = np.ones(actions.continuous_size)
        bound[list(actions.unbounded)] = np.inf
        return box_units(-bound, bound)
    boxes = [(*plain_bounds(box), bool(box.get("clipped"))) for box in _boxes(space)]
    size = sum(low.size for low, _, _ in boxes)
    if size != actions.continuous_size:
        raise StageError(
            f"{spec.name}: the policy has {actions.continuous_size} continuous actions, but the action space in its "
            f"spec has {size}"
        )
    nothing = box_units(np.empty(0), np.empty(0))
    return ActionUnits(*map(np.concatenate, zip(nothing, *(box_units(*box) for box in boxes), strict=True)))


def plain_bounds(box: Mapping[str, Any]) -> tuple[Array, Array]:
    """Return the bounds [*shape] of a Box that is plain data (`stages/environments/spaces/own_space.py`)."""
    shape, dtype = tuple(int(size) for size in box["shape"]), np.dtype(str(box["dtype"]))
    return _array(box["low"], shape, dtype, -np.inf), _array(box["high"], shape, dtype, np.inf)


def _array(bound: Any, shape: tuple[int, ...], dtype: np.dtype[Any], infinite: float) -> Array:
    if isinstance(bound, list):
        return np.array([infinite if number is None else number for number in bound], dtype).reshape(shape)
    with np.errstate(over="ignore"):
        number = np.array(infinite if bound is None else bound, dtype)
    return np.broadcast_to(number, shape)  # takes no memory, however large the shape


def _boxes(space: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the Boxes of a space that is plain data, in the order of the policy's continuous actions."""
    if space["kind"] == "Box":
        yield space
    for _, part in space.get("parts", ()):
        yield from _boxes(part)

"""One behaviour's Gymnasium spaces as columns, for groups of Gymnasium and PettingZoo environments.

This module also converts decisions to the environment's actions: boxes become continuous actions, and discrete spaces
become branches. A Dict or Tuple of them, even a nested one, becomes both kinds side by side (hybrid actions), in the
space's own order. Each part of the action is a head with a name: the part's key in a Dict or index in a Tuple, joined
by dots if nested (`arm.grip`), and followed by a number if the part has several heads (`arm.0`). Observations are in
`observations`, masks in `masks`.

Axis letters: n instances.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any

import numpy as np

from headrace.config import ObservationSettings
from headrace.queues.messages import ActionBatch, Array
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.action_units import box_units
from headrace.stages.environments.spaces.masks import MASK, AgentMasks, MaskReader
from headrace.stages.environments.spaces.observations import are_pixels, channels_last, observation_parts
from headrace.stages.environments.spaces.own_space import (
    BoxSpace,
    ChoiceSpace,
    ComposedSpace,
    OwnSpace,
    leaves,
    own_space,
    plain_spaces,
    with_clipped_boxes,
)
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


log = logging.getLogger(__name__)


_SHORTEST_SIDE = 16
"""Minimum side in pixels of a possible image."""
_MOST_FLAT = 1024
"""Minimum length at which a vector of bytes may be an image."""
_MOST_NUMBERS = 10_000
"""Minimum length at which a vector of any numbers may be an image."""
_LIKE_BYTES = 100
"""Bounds from which numbers that are not bytes count as pixels rather than features."""
_SMALL_FOR_BYTES = 15
"""Largest upper bound at which bytes count as a board rather than pixels."""


def space_warnings(
    space: OwnSpace, specs: tuple[ObservationSpec, ...], settings: Mapping[str, ObservationSettings] | None
) -> Iterator[str]:
    """Yield warnings about a space's observations.

    Args:
        space: the space of a single instance.
        specs: the specs made from the space, one for each leaf.
        settings: `environment.observations`; an explicit setting removes the warning.
    """
    for (_, leaf), spec in zip(leaves(space), specs, strict=True):
        name = spec.name
        said = (settings or {}).get(name) or ObservationSettings()
        if "action" in name and "mask" in name:
            yield (
                f"the observation '{name}' is used like any other; if it is an action mask, put it under the key "
                f"{MASK!r} of the outermost Dict or of the info (docs/algorithms.md#actions)"
            )
        if not isinstance(leaf, BoxSpace):
            continue
        if spec.kind == "image":
            if said.channels is None and _may_have_other_channels(leaf.shape):
                order, other = ("last", "first") if spec.channels_last else ("first", "last")
                yield (
                    f"the observation '{name}' is an image of shape {leaf.shape}, which does not tell where its "
                    f"channels are; they are assumed to come {order}. If not, set environment.observations.{name} to "
                    f"{{channels: {other}}} (or {{channels: {order}}} to confirm it), or to vector if it is not an "
                    "image"
                )
            if doubt := _about_scale(leaf):
                yield f"the observation '{name}' is an image of {leaf}: {doubt}"
        elif spec.kind == "vector" and said.kind is None and _may_be_picture(leaf):
            yield (
                f"the observation '{name}' of {leaf} is treated as a vector of {spec.size} numbers. If it is an image, "
                f"set environment.observations.{name} to image, with 2 to 4 dimensions; if not, set it to vector to "
                "confirm"
            )


def _may_have_other_channels(shape: tuple[int, ...]) -> bool:
    """Return True if the outer dimensions are equal, the middle one is the smallest, or a board's rule disagrees."""
    if len(shape) < 3:
        return False
    doubtful = shape[-3] == shape[-1] or shape[-2] < min(shape[-3], shape[-1])
    return doubtful or channels_last(shape, True) != channels_last(shape, False)


def _about_scale(box: BoxSpace) -> str | None:
    """Return a doubt about an image's scale, or None. Only bytes are scaled: by 1/255, to the range from 0 to 1."""
    if not (np.isfinite(box.low).all() and np.isfinite(box.high).all()) or box.dtype == np.bool_:
        return None
    highest = max(float(np.abs(box.low.astype(np.float64)).max()), float(np.abs(box.high.astype(np.float64)).max()))
    if box.dtype != np.uint8 and highest >= _LIKE_BYTES:
        return (
            "only bytes are scaled to the range 0 to 1, and the network receives these numbers unscaled. Make its "
            "dtype uint8, or scale it in the environment or in a wrapper (environment.wrappers)"
        )
    if box.dtype == np.uint8 and highest <= _SMALL_FOR_BYTES:
        return (
            f"bytes are divided by 255, so the network receives 0 to {highest / 255:.2g}. If they are not pixels, make "
            "the dtype float32, or bool for zeros and ones"
        )
    return None


def _may_be_picture(box: BoxSpace) -> bool:
    size, shape = math.prod(box.shape), box.shape
    if size >= _MOST_NUMBERS or (size >= _MOST_FLAT and are_pixels(box)):
        return True
    if len(shape) == 2:
        return min(shape) >= _SHORTEST_SIDE or (are_pixels(box) and size >= _SHORTEST_SIDE**2)
    return len(shape) > 2 and sorted(shape)[-2] >= _SHORTEST_SIDE


class SpaceColumns:
    """Agents' observations and actions as columns.

    Args:
        observation_space: one agent's Gymnasium space; `action_mask` in a Dict is a mask, not an observation.
        action_space: one agent's Gymnasium space.
        owner: the environment's name, used in messages.
        settings: kinds of observations whose spaces are ambiguous, keyed by name (`environment.observations`).
        exact: see `observation_parts`.
        clips: True if `environment.action_bounds` is `clip`.

    Attributes:
        observation_space: the observation space as plain data, without the mask.
        parts: the conversion of observations to columns.
        mask_observed: True if the observations contain a mask.
        actions: returns the conversion for the actions of a number of agents.
        masks: the masks of the actions.
        owner: the environment's name.

    Raises:
        StageError: if a space is not supported, or the settings do not fit it.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        owner: str,
        settings: Mapping[str, ObservationSettings] | None,
        exact: bool = False,
        clips: bool = False,
    ) -> None:
        seen, done = own_space(observation_space), own_space(action_space)
        self._action_space = with_clipped_boxes(done) if clips else done
        self.mask_observed = isinstance(seen, ComposedSpace) and seen.kind == "Dict" and MASK in seen.parts
        if isinstance(seen, ComposedSpace) and self.mask_observed:
            seen = replace(seen, parts={key: part for key, part in seen.parts.items() if key != MASK})
        self.observation_space = seen
        self.parts = observation_parts(self.observation_space, owner, settings, exact)
        for warning in space_warnings(self.observation_space, tuple(part.spec for part in self.parts), settings):
            log.warning("%s: %s", owner, warning)
        self.owner = owner
        self.actions = lru_cache(maxsize=64)(partial(action_mapping, self._action_space, owner=owner))
        self._actions = self.actions(1).spec
        self.masks = AgentMasks(MaskReader(self._action_space, self._actions.branch_names), self.mask_observed, owner)

    def spec(self, behavior_id: str, grouped: bool = False) -> BehaviorSpec:
        """Return the spec for a behaviour id; `grouped` is as in `BehaviorSpec`."""
        return BehaviorSpec(
            behavior_id,
            tuple(part.spec for part in self.parts),
            replace(self._actions, masked=self.masks.masked),
            grouped,
            spaces=plain_spaces(self.observation_space, self._action_space),
        )

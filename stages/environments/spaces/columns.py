"""One behaviour's Gymnasium spaces as columns, for groups of Gymnasium and PettingZoo environments."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from headrace.config import ObservationSettings
from headrace.queues.messages import Array
from headrace.queues.specs import BehaviorSpec, ObservationSpec
from headrace.stages.environments.spaces.actions import ActionMapping, action_mapping
from headrace.stages.environments.spaces.agent_masks import AgentMasks
from headrace.stages.environments.spaces.masks import MASK, MaskReader
from headrace.stages.environments.spaces.observations import are_pixels, observation_parts
from headrace.stages.environments.spaces.own_space import (
    BoxSpace,
    ComposedSpace,
    OwnSpace,
    leaves,
    own_space,
    plain_spaces,
    with_clipped_boxes,
)
from headrace.stages.errors import Who

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
            if said.channels is None and (doubt := _about_channels(leaf.shape)):
                other = "first" if spec.channels_last else "last"
                yield (
                    f"the observation '{name}' is an image of shape {leaf.shape}, {doubt}; its channels are assumed to "
                    f"come {'last' if spec.channels_last else 'first'}. If not, set environment.observations.{name} to "
                    f"{{channels: {other}}} (or to the present order, to confirm it), or to vector if it is not an "
                    "image"
                )
            if doubt := _about_scale(leaf):
                yield f"the observation '{name}' is an image of {leaf}: {doubt}"
        elif spec.kind == "vector" and said.kind is None and _may_be_picture(leaf):
            yield (
                f"the observation '{name}' of {leaf} is treated as a vector of {spec.size} numbers. If it is an image, "
                f"set environment.observations.{name} to image ({_of_rank(leaf)}); if not, set it to vector to confirm"
            )


def _about_channels(shape: tuple[int, ...]) -> str | None:
    if len(shape) < 3:
        return None
    first, middle, end = shape[-3:]
    if first == middle == end:
        return "all of whose dimensions are equal"
    if first == end:
        return "whose outer dimensions are equal, which suggests neither order"
    if middle < min(first, end):
        return "with the middle dimension the smallest"
    return None


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


def _of_rank(box: BoxSpace) -> str:
    if 2 <= len(box.shape) <= 4:
        return "of 2 to 4 dimensions, unchanged"
    return "which has 2 to 4 dimensions: keep its shape instead of flattening it"


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
        masks: the masks of the actions.

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
        self._owner = owner
        self._mappings = lru_cache(maxsize=64)(self._make_mapping)
        self._actions = self.actions(1).spec
        self.masks = AgentMasks(MaskReader(self._action_space, self._actions.branch_names), self.mask_observed, owner)

    def actions(self, count: int) -> ActionMapping:
        """Return the conversion for the actions of `count` agents."""
        return self._mappings(count)

    def spec(self, behavior_id: str, grouped: bool = False) -> BehaviorSpec:
        """Return the spec for a behaviour id; `grouped` is as in `BehaviorSpec`."""
        return BehaviorSpec(
            behavior_id,
            tuple(part.spec for part in self.parts),
            replace(self._actions, masked=self.masks.masked),
            grouped,
            spaces=plain_spaces(self.observation_space, self._action_space),
        )

    def extract(self, batch: Any, who: Who) -> tuple[Array, ...]:
        """Convert k observations, batched as `gymnasium.vector` does, to a new array [k, *shape] for each part.

        Raises:
            BrokenEnvironmentError: if an integer is outside its space; `who` names the row's agent.
        """
        return tuple([part.extract(batch, who) for part in self.parts])

    def _make_mapping(self, count: int) -> ActionMapping:
        return action_mapping(self._action_space, count, self._owner)

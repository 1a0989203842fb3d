"""Gymnasium's spaces as plain data."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from headrace.stages.environments.spaces.own_space import (
    BoxSpace,
    ChoiceSpace,
    ComposedSpace,
    OtherSpace,
    OwnSpace,
    SequenceSpace,
    to_plain,
)

Space = spaces.Space[Any]


def own_space(space: Space) -> OwnSpace:
    """Return a space as plain data; one of a kind that can't be used is an `OtherSpace`, which its users refuse."""
    match space:
        case spaces.Dict():
            return ComposedSpace("Dict", {key: own_space(part) for key, part in space.spaces.items()})
        case spaces.Tuple():
            return ComposedSpace("Tuple", {index: own_space(part) for index, part in enumerate(space.spaces)})
        case spaces.Box():
            return BoxSpace(space.low, space.high)
        case spaces.Discrete():
            return _choices("Discrete", space, space.n, space.start)
        case spaces.MultiDiscrete():
            return _choices("MultiDiscrete", space, space.nvec, space.start)
        case spaces.MultiBinary():
            return _choices("MultiBinary", space, np.full(space.shape, 2), 0)
        case spaces.Sequence():
            return SequenceSpace(own_space(space.feature_space), space.stack)
    return OtherSpace(type(space).__name__)


def plain_spaces(observation: OwnSpace, action: OwnSpace) -> dict[str, Any] | None:
    """Return what `BehaviorSpec.spaces` holds: both spaces as plain data; None if one has keys of other types."""
    plain = {"observation": to_plain(observation), "action": to_plain(action)}
    return None if None in plain.values() else plain


def _choices(kind: str, space: Space, sizes: Any, start: Any) -> ChoiceSpace:
    sizes = np.asarray(sizes, np.int64)
    return ChoiceSpace(kind, sizes, np.broadcast_to(np.asarray(start, np.int64), sizes.shape), np.dtype(space.dtype))

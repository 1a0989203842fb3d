"""Converts a game's spaces to Gymnasium's, and splits the actions of learners with a single action space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from headrace.stages.environments.godot.announcement import is_picture


def action_space(announced: Mapping[str, Any]) -> spaces.Dict:
    """Return the space of one agent's actions by key, in the game's order."""
    return _in_order(
        {
            key: spaces.Discrete(int(each["size"]))
            if each["action_type"] == "discrete"
            else spaces.Box(-1.0, 1.0, (int(each["size"]),))
            for key, each in announced.items()
        }
    )


def observation_space(announced: Mapping[str, Any]) -> spaces.Dict:
    """Return the space of one agent's observations by key; images are bytes, with the axes in the announced order."""
    return _in_order({key: _observation(key, each) for key, each in announced.items()})


def flat_space(space: spaces.Dict) -> spaces.Space[Any]:
    """Return the single space that stands for all actions: MultiDiscrete if all are discrete, otherwise one Box.

    Raises:
        NotImplementedError: if an action with more than two choices is combined with continuous actions.
    """
    parts = space.spaces
    if all(isinstance(part, spaces.Discrete) for part in parts.values()):
        return spaces.MultiDiscrete([_choices(part) for part in parts.values()])
    for key, part in parts.items():
        if _choices(part) > 2:
            raise NotImplementedError(
                f"the action {key!r} has {_choices(part)} choices and is combined with continuous actions, which a "
                "single Box can't hold; leave convert_action_space false, or train with environment.kind: godot"
            )
    return spaces.Box(-1.0, 1.0, (sum(_width(part) for part in parts.values()),))


class ActionSpaceProcessor:
    """Converts a learner's actions to actions by key, like the class in `godot_rl.core.utils`.

    Args:
        action_space: the action space, a Dict of each key's space.
        convert: True if learners pass one array, see `flat_space`.

    Attributes:
        action_space: the space of the learner's actions.
    """

    def __init__(self, action_space: spaces.Dict, convert: bool) -> None:
        self._original = action_space
        self._convert = convert
        self.action_space = flat_space(action_space) if convert else spaces.Tuple(list(action_space.spaces.values()))

    def to_original_dist(self, action: Any) -> Any:
        """Return actions [agents, width] split by key; return actions in other forms unchanged."""
        return split(np.asarray(action), self._original) if self._convert else action


def split(actions: NDArray[Any], space: spaces.Dict) -> list[NDArray[Any]]:
    """Split flat actions [agents, width] by key. A float above 0 selects a discrete action's second choice."""
    parts = []
    begin = 0
    for part in space.spaces.values():
        if isinstance(part, spaces.Discrete):
            column = actions[:, begin]
            parts.append(column if np.issubdtype(actions.dtype, np.integer) else (column > 0).astype(np.int64))
        else:
            parts.append(actions[:, begin : begin + _width(part)])
        begin += _width(part)
    return parts


def _observation(key: str, announced: Any) -> spaces.Space[Any]:
    if announced["space"] == "discrete":
        return spaces.Discrete(int(announced["size"]))
    shape = tuple(int(length) for length in announced["size"])
    if is_picture(key):
        return spaces.Box(0, 255, shape, np.uint8)
    return spaces.Box(-1.0, 1.0, shape, np.float32)


def _in_order(parts: dict[str, spaces.Space[Any]]) -> spaces.Dict:
    """Return a Dict space that keeps the order of the keys. Given a plain dict, Gymnasium would sort them."""
    return spaces.Dict(list(parts.items()))


def _choices(part: spaces.Space[Any]) -> int:
    return int(part.n) if isinstance(part, spaces.Discrete) else 0


def _width(part: spaces.Space[Any]) -> int:
    return int(np.prod(part.shape)) if isinstance(part, spaces.Box) else 1

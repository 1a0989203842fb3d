"""Keeps masks in a vector environment's infos as a list, with each instance's mask or None.

Gymnasium would make one array of the masks, with the shape and dtype of the first instance's mask. It would broadcast
or cast the other masks, which may change their meaning, or fail without naming the instance.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from headrace.stages.environments.spaces.agent_masks import like_masks
from headrace.stages.environments.spaces.masks import MASK

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv

MISSING = object()


def add_mask(infos: dict[str, Any], mask: Any, i: int, num_envs: int) -> None:
    """Add a copy of an instance's mask to the infos, because instances may share the array behind it."""
    infos.setdefault(MASK, [None] * num_envs)[i] = copy.deepcopy(mask)


def hints_of_masks(layers: Iterable[Any], info: Iterable[Any]) -> list[str]:
    """Describe places that may hold masks but are not supported: other keys, a method, or a wrapper.

    Args:
        layers: an environment and its wrappers, the outermost first.
        info: the keys of the info that the environment's `reset` returned.
    """
    found, around = [*info], None
    for layer in layers:
        if hasattr(layer, "action_masks"):  # the method that sb3-contrib's MaskablePPO calls
            found.append("action_masks()")
        if MASK in getattr(layer.observation_space, "spaces", ()):
            found += [] if around is None else [f"{MASK} in the observations within {type(around).__name__}"]
            break
        around = layer
    return like_masks(found)


def keep_masks(envs: VectorEnv[Any, Any, Any]) -> None:
    """Make a Gymnasium vector environment keep masks as a list instead of batching them."""
    batched = envs._add_info

    def added(vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        if MASK in env_info:
            add_mask(vector_infos, env_info[MASK], env_num, envs.num_envs)
            env_info = {key: value for key, value in env_info.items() if key != MASK}
        return batched(vector_infos, env_info, env_num)

    envs._add_info = added  # type: ignore[method-assign]

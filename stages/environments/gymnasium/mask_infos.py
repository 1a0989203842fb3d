"""Masks in the infos of vector environments: a list of what each instance gave, None where one gave none.

Gymnasium makes an array of them, of the shape and dtype of the first instance's: another's is broadcast or cast to
these, by which it may mean something else, or fails without a name.
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
    """Add the mask of an instance; a copy, as instances may share what they write it into."""
    infos.setdefault(MASK, [None] * num_envs)[i] = copy.deepcopy(mask)


def hints_of_masks(layers: Iterable[Any], info: Iterable[Any]) -> list[str]:
    """Return what may be a mask where none is looked for: under other keys, in a method, within a wrapper.

    Args:
        layers: an environment and its wrappers, the outermost first.
        info: keys of what its reset returned.
    """
    found, around = [*info], None
    for layer in layers:
        if hasattr(layer, "action_masks"):  # as sb3-contrib's MaskablePPO calls it
            found.append("action_masks()")
        if MASK in getattr(layer.observation_space, "spaces", ()):
            found += [] if around is None else [f"{MASK} in the observations within {type(around).__name__}"]
            break
        around = layer
    return like_masks(found)


def keep_masks(envs: VectorEnv[Any, Any, Any]) -> None:
    """Let a vector environment of single ones, which Gymnasium batches, keep masks as a list."""
    batched = envs._add_info

    def added(vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        if MASK in env_info:
            add_mask(vector_infos, env_info[MASK], env_num, envs.num_envs)
            env_info = {key: value for key, value in env_info.items() if key != MASK}
        return batched(vector_infos, env_info, env_num)

    envs._add_info = added  # type: ignore[method-assign]

"""The spaces of a policy's observations and actions: the environment's own, or named columns if the file has none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from operator import getitem
from typing import Any

import numpy as np

from headrace.config import ObservationSettings
from headrace.pipeline.common.errors import RunError
from headrace.queues.messages import ActionBatch
from headrace.queues.specs import STEP_MUL, ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.environments.spaces.columns import action_mapping
from headrace.stages.environments.spaces.observations import ObservationPart, name_of, observation_parts
from headrace.stages.environments.spaces.own_space import (
    BoxSpace,
    ChoiceSpace,
    ComposedSpace,
    Leaf,
    OwnSpace,
    SequenceSpace,
    from_plain,
    leaves,
)
from headrace.stages.errors import StageError

CONTINUOUS, DISCRETE = "continuous", "discrete"
"""Keys of the action dict for a policy whose file has no spaces."""


@dataclass(frozen=True)
class PolicySpaces:
    """A behaviour's spaces, and how its observations and actions are converted to and from columns."""

    observation_space: OwnSpace
    action_space: OwnSpace
    parts: tuple[ObservationPart, ...]
    """The spec of each column, and the function that extracts the column, in the order of the space's leaves."""
    held: int | None = 1
    """Number of environment steps that each action lasts; the maximum if the policy chooses the number; None if
    unknown."""
    chooses_held: bool = False
    """True if the policy chooses, with each action, for how many steps the action is held."""

    @cached_property
    def _mapping(self) -> Callable[[int], Callable[[ActionBatch], Any]]:
        return lru_cache(maxsize=16)(lambda n: action_mapping(self.action_space, n, "").to_environment)

    @property
    def starts(self) -> list[int]:
        """The environment's number for choice 0 of each branch."""
        starts = [leaf.start for _, leaf in leaves(self.action_space) if isinstance(leaf, ChoiceSpace)]
        return [int(number) for start in starts for number in start.flat] + [1] * self.chooses_held

    @cached_property
    def _boxes(self) -> list[tuple[Any, ...]]:
        return [keys for keys, leaf in leaves(self.action_space) if isinstance(leaf, BoxSpace)]

    def own_actions(self, actions: ActionBatch) -> Any:
        """Return n decisions as n actions in the environment's space, batched, without `STEP_MUL`."""
        discrete = actions.discrete[:, :-1] if self.chooses_held else actions.discrete
        return self._mapping(len(discrete))(ActionBatch(actions.continuous, discrete))

    def in_units(self, actions: ActionBatch) -> ActionBatch:
        """Return n decisions with continuous actions [n, C] in the environment's units, as float64."""
        if not self._boxes:
            return actions
        native, n = self.own_actions(actions), len(actions.continuous)
        numbers = [reduce(getitem, keys, native).reshape(n, -1) for keys in self._boxes]
        return ActionBatch(np.concatenate(numbers, axis=1, dtype=np.float64), actions.discrete)


def policy_spaces(spec: BehaviorSpec, where: str) -> PolicySpaces:
    """Return a policy's spaces.

    Args:
        spec: the spec in the policy's file.
        where: name of the file, for messages.

    Raises:
        RunError: if the file's spaces don't match its observations and actions.
    """
    chooses = spec.action_repeat == "learned"
    decided = _without_held(spec.actions) if chooses else spec.actions
    stated = spec.spaces or {}
    try:
        held = spec.actions.discrete_branches[-1] if chooses else _held(spec, stated)
        if "observation" not in stated and "action" not in stated:
            return _columns(spec, decided, held, chooses)
        seen, done = (from_plain(stated[key]) for key in ("observation", "action"))
        _check_sizes(seen, done, spec)
        exact = any(observation.dtype == "float64" for observation in spec.observations)
        parts = observation_parts(seen, where, _settings(seen, spec.observations), exact)
        actions = action_mapping(done, 1, where).spec
    except (StageError, KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"{where}: the policy's description of the environment's spaces can't be read: {error}"
        ) from error
    theirs = (actions.continuous_size, actions.discrete_branches, actions.unbounded)
    ours = (decided.continuous_size, decided.discrete_branches, decided.unbounded)
    if tuple(part.spec for part in parts) != spec.observations or theirs != ours:
        raise RunError(
            f"{where}: the policy's description of the environment's spaces, {seen} and {done}, does not match its "
            "network"
        )
    return PolicySpaces(seen, done, parts, held, chooses)


def _held(spec: BehaviorSpec, stated: Mapping[str, Any]) -> int | None:
    if spec.action_repeat is None:
        return 1
    return int(stated["action_repeat"]) if "action_repeat" in stated else None  # a group may not state it


def _columns(spec: BehaviorSpec, decided: ActionSpec, held: int | None, chooses: bool) -> PolicySpaces:
    """Return named columns for a policy without spaces: observations are keyed by name, and actions by kind."""
    boxes = [_any_numbers(observation) for observation in spec.observations]
    names = [observation.name for observation in spec.observations]
    if len(boxes) == 1:
        seen: OwnSpace = boxes[0]
    elif len({*names}) == len(names):
        seen = ComposedSpace("Dict", dict(zip(names, boxes, strict=True)))
    else:  # Unity's sensors may share a name
        seen = ComposedSpace("Tuple", dict(enumerate(boxes)))
    parts = []
    for (keys, box), observation in zip(leaves(seen), spec.observations, strict=True):
        (part,) = observation_parts(
            box, "", {"observation": _setting(box, observation)}, observation.dtype == "float64"
        )
        parts.append(ObservationPart(observation, _below(keys, part)))
    kinds: dict[str, OwnSpace] = {}
    if decided.continuous_size:
        bound = np.ones(decided.continuous_size, np.float32)
        bound[list(decided.unbounded)] = np.inf
        kinds[CONTINUOUS] = BoxSpace(-bound, bound)
    if decided.discrete_branches:
        sizes = np.array(decided.discrete_branches, np.int64)
        kinds[DISCRETE] = ChoiceSpace("MultiDiscrete", sizes, np.zeros_like(sizes), np.dtype(np.int32))
    return PolicySpaces(seen, ComposedSpace("Dict", kinds), tuple(parts), held, chooses)


def _below(keys: tuple[Any, ...], part: ObservationPart) -> Any:
    return (lambda batch, who: part.extract(batch[keys[0]], who)) if keys else part.extract


def _any_numbers(spec: ObservationSpec) -> BoxSpace:
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "f":
        low, high = -np.inf, np.inf
    else:
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    shape = spec.shape or (1,)
    return BoxSpace(np.broadcast_to(np.array(low, dtype), shape), np.broadcast_to(np.array(high, dtype), shape))


def _without_held(actions: ActionSpec) -> ActionSpec:
    assert actions.branch_heads[-1] == STEP_MUL
    return ActionSpec(actions.continuous_size, actions.discrete_branches[:-1], actions.masked, actions.unbounded)


def _settings(space: OwnSpace, specs: tuple[ObservationSpec, ...]) -> Mapping[str, ObservationSettings]:
    """Return the settings of `environment.observations` that convert a space to these columns."""
    by_name = {spec.name: spec for spec in specs}
    named = {name_of(keys): leaf for keys, leaf in leaves(space)}
    return {name: _setting(leaf, by_name[name]) for name, leaf in named.items()}


def _setting(leaf: Leaf, spec: ObservationSpec) -> ObservationSettings:
    picture = spec.kind == "image" and len(leaf.shape) > 2
    return ObservationSettings(
        kind=spec.kind,
        goal=spec.goal,
        channels=("last" if spec.channels_last else "first") if picture else None,
        max_entities=spec.shape[0] if isinstance(leaf, SequenceSpace) else None,
    )


def _check_sizes(seen: OwnSpace, done: OwnSpace, spec: BehaviorSpec) -> None:
    """Check that no box is larger than the policy's inputs and actions, before arrays of the box's size are created."""
    most = max([spec.actions.continuous_size, *(observation.size for observation in spec.observations)])
    waiting = [seen, done]
    while waiting:
        for _, leaf in leaves(waiting.pop()):
            if isinstance(leaf, SequenceSpace):
                waiting.append(leaf.element)
            elif isinstance(leaf, BoxSpace) and leaf.low.size > most:
                raise ValueError(f"{leaf.kind} of shape {leaf.shape} is larger than the entire policy")

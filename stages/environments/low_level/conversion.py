"""Converts specs and steps of ML-Agents' interface to columns. Attributes are read by name, whatever their class.

Implementations differ: they use lists in place of arrays, masks per branch or in one array, and may lack attributes
that newer versions have. Everything unambiguous is accepted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import Array
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.environments.programs.rows import ProgramRows
from headrace.stages.environments.spaces.masks import MaskError, MaskReader
from headrace.stages.errors import BrokenEnvironmentError, StageError

_NONE, _TRANSLATION = 1, 2
_CHANNELS_LAST = (_TRANSLATION, _TRANSLATION, _NONE)
_GOAL_SIGNAL = 1


def behavior_spec(behavior_id: str, spec: Any, label: str) -> BehaviorSpec:
    """Convert a behaviour's spec.

    Args:
        behavior_id: the behaviour's full name, `Name?team=0`.
        spec: an ML-Agents `BehaviorSpec`.
        label: the environment's name, which begins messages.

    Raises:
        StageError: if `spec` is not an ML-Agents spec, or has observations that no network can read.
    """
    try:
        observations = tuple(_observation(o, index) for index, o in enumerate(spec.observation_specs))
        branches = tuple(int(size) for size in spec.action_spec.discrete_branches)
        actions = ActionSpec(int(spec.action_spec.continuous_size), branches, masked=bool(branches))
    except (AttributeError, TypeError, ValueError) as error:
        raise StageError(
            f"{label}: behavior_specs[{behavior_id!r}] is not an ML-Agents BehaviorSpec with observation_specs (shape, "
            f"dimension_property, observation_type, name) and action_spec (continuous_size, discrete_branches): {error}"
        ) from error
    for observation in observations:
        if not 1 <= len(observation.shape) <= 3 or min(observation.shape) < 1:
            raise StageError(
                f"{label}: {behavior_id}'s observation {observation.name!r} has shape {observation.shape}; "
                "expected a vector (rank 1), a set of elements (rank 2) or an image (rank 3)"
            )
    return BehaviorSpec(behavior_id, observations, actions, grouped=True)


def read_steps(spec: BehaviorSpec, decisions: Any, endings: Any, label: str) -> ProgramRows:
    """Convert one behaviour's steps to rows, endings first.

    Args:
        spec: the spec, from `behavior_spec`.
        decisions: `DecisionSteps`.
        endings: `TerminalSteps`.
        label: the environment's name, which begins messages.

    Raises:
        BrokenEnvironmentError: if a value is missing, duplicated, not finite or of the wrong shape.
    """
    reader = _StepsReader(spec, label)
    over, asking = reader.part(endings, "TerminalSteps"), reader.part(decisions, "DecisionSteps")
    ended = len(over.ids)
    return ProgramRows(
        ids=np.concatenate((over.ids, asking.ids)),
        rewards=np.concatenate((over.rewards, asking.rewards)),
        ended=ended,
        interrupted=reader.interrupted(endings, ended),
        observations=tuple(np.concatenate(pair) for pair in zip(over.observations, asking.observations, strict=True)),
        action_masks=reader.masks(decisions, len(asking.ids)),
        group_ids=np.concatenate((over.group_ids, asking.group_ids)),
        group_rewards=np.concatenate((over.group_rewards, asking.group_rewards)),
    )


def _observation(spec: Any, index: int) -> ObservationSpec:
    shape = tuple(int(size) for size in spec.shape)
    properties = tuple(int(flags) for flags in getattr(spec, "dimension_property", None) or ())
    last = len(shape) == 3 and (properties == _CHANNELS_LAST if any(properties) else shape[2] < shape[0])
    goal = _number(getattr(spec, "observation_type", 0)) == _GOAL_SIGNAL
    name = getattr(spec, "name", "") or f"observation_{index}"
    return ObservationSpec(name, shape, channels_last=last, goal=goal)


def _number(value: Any) -> int:
    """Return an enum member's number, from an IntEnum or any other Enum."""
    return int(getattr(value, "value", value))


class _StepColumns(NamedTuple):
    """Reads columns [n] from one kind of steps: `DecisionSteps` or `TerminalSteps`."""

    ids: NDArray[np.int32]
    rewards: NDArray[np.float32]
    observations: list[Array]
    group_ids: NDArray[np.int32]
    group_rewards: NDArray[np.float32]


class _StepsReader:
    def __init__(self, spec: BehaviorSpec, label: str) -> None:
        self._spec = spec
        self._label = f"{label}, behaviour {spec.behavior_id!r}"

    def part(self, steps: Any, kind: str) -> _StepColumns:
        ids = self._column(steps, "agent_id", np.int32, None, kind)
        count = len(ids)
        if len(np.unique(ids)) != count:
            raise self._broken(f"{kind}.agent_id contains an agent twice: {ids.tolist()}")
        return _StepColumns(
            ids,
            self._finite(self._column(steps, "reward", np.float32, count, kind), f"{kind}.reward", ids),
            [self._seen(steps, index, count, ids, kind) for index in range(len(self._spec.observations))],
            self._column(steps, "group_id", np.int32, count, kind, optional=True),
            self._finite(
                self._column(steps, "group_reward", np.float32, count, kind, optional=True), f"{kind}.group_reward", ids
            ),
        )

    def interrupted(self, endings: Any, count: int) -> NDArray[np.bool_]:
        """Return flags [count], true for interrupted episodes.

        Before version 0.22, the attribute is called `max_step`.
        """
        name = "max_step" if not hasattr(endings, "interrupted") and hasattr(endings, "max_step") else "interrupted"
        column: NDArray[np.bool_] = self._column(endings, name, np.bool_, count, "TerminalSteps")
        return column

    def masks(self, decisions: Any, count: int) -> NDArray[np.bool_] | None:
        """Return masks [count, choices], true = allowed, from one or more mask arrays in which true = forbidden."""
        if not self._spec.actions.masked:
            return None
        width = self._spec.actions.mask_size
        mask = getattr(decisions, "action_mask", None)
        if mask is None or not count:
            return np.ones((count, width), np.bool_)
        try:
            branches = [mask] if isinstance(mask, np.ndarray) else mask
            allowed = [~np.asarray(branch, np.bool_).reshape(count, -1) for branch in branches]
            reader = MaskReader.of_branches(
                self._spec.actions, "at least one false value, because true forbids a choice"
            )
            return reader.read(allowed[0] if len(allowed) == 1 else tuple(allowed), count)
        except MaskError as error:
            row = "" if error.row is None else f" of row {error.row}"
            raise self._broken(f"DecisionSteps.action_mask{row} {error.problem}") from error
        except (TypeError, ValueError) as error:
            raise self._broken(f"DecisionSteps.action_mask is not a mask for {count} agents: {error}") from error

    def _column(
        self, steps: Any, name: str, dtype: Any, count: int | None, kind: str, *, optional: bool = False
    ) -> Any:
        values = getattr(steps, name, None)
        if values is None and optional:
            return np.zeros(count or 0, dtype)
        if values is None:
            raise self._broken(f"get_steps returned {kind} ({type(steps).__name__}) without {name}")
        try:
            with np.errstate(over="ignore"):  # `_finite` reports an overflow
                column = np.asarray(values).astype(dtype).reshape(-1)
        except (OverflowError, TypeError, ValueError) as error:
            raise self._broken(f"{kind}.{name} is not a column of numbers: {error}") from error
        if count is not None and len(column) != count:
            raise self._broken(f"{kind}.{name} has {len(column)} rows, but agent_id has {count}")
        return column

    def _seen(self, steps: Any, index: int, count: int, ids: NDArray[np.int32], kind: str) -> Array:
        spec = self._spec.observations[index]
        observations = getattr(steps, "obs", None)
        if observations is None or len(observations) != len(self._spec.observations):
            found = "no obs" if observations is None else f"{len(observations)} obs"
            raise self._broken(f"{kind} has {found}; expected {len(self._spec.observations)}, from its spec")
        if not count:
            return np.zeros((0, *spec.shape), np.float32)
        try:
            with np.errstate(over="ignore"):  # reported below
                column = np.asarray(observations[index], np.float32)
        except (OverflowError, TypeError, ValueError) as error:
            raise self._broken(f"{kind}.obs[{index}] is not an array of numbers: {error}") from error
        if column.shape != (count, *spec.shape):
            raise self._broken(f"{kind}.obs[{index}] has shape {column.shape}; expected {(count, *spec.shape)}")
        return self._finite(column, f"{kind}.obs[{index}]", ids)

    def _finite(self, column: NDArray[np.float32], what: str, ids: NDArray[np.int32]) -> NDArray[np.float32]:
        if not np.isfinite(column).all():
            row = int(np.argwhere(~np.isfinite(column))[0][0])
            raise self._broken(f"{what} of agent {ids[row]} is not finite: {column[row]}")
        return column

    def _broken(self, problem: str) -> BrokenEnvironmentError:
        return BrokenEnvironmentError(f"{self._label}: {problem}")

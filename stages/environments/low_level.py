"""Environments with the interface of ML-Agents' low-level API (`BaseEnv`), from any package, as one environment group.

The group steps the objects one after another in every tick. `make_low_level_group` makes the group from the
`environment` section.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.queues.messages import ActionBatch, Array
from headrace.queues.specs import ActionSpec, BehaviorSpec, ObservationSpec
from headrace.stages.environments import factory
from headrace.stages.environments.engines.game import merged_statistics
from headrace.stages.environments.engines.rows import (
    GameEpisodes,
    GameRows,
    IndexedRows,
    TrackedRows,
    agent_steps,
    decision_rows,
)
from headrace.stages.environments.engines.unity.side_channels import SideChannelBridge
from headrace.stages.environments.engines.unity.specs import ActionTuple
from headrace.stages.environments.parameters import EpisodeParameters
from headrace.stages.environments.protocol import StepResult
from headrace.stages.environments.spaces.masks import MaskError, MaskReader
from headrace.stages.errors import (
    BrokenEnvironmentError,
    EnvironmentEnded,
    LoadError,
    StageError,
    blaming,
    describe_error,
    type_of,
    unfit_number,
)
from headrace.stages.loading import check_arguments

log = logging.getLogger(__name__)


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


def read_steps(spec: BehaviorSpec, decisions: Any, endings: Any, label: str) -> GameRows:
    """Convert one behaviour's steps to rows, endings first.

    Args:
        spec: the spec, from `behavior_spec`.
        decisions: `DecisionSteps`.
        endings: `TerminalSteps`.
        label: the environment's name, which begins messages.

    Raises:
        BrokenEnvironmentError: if a value is missing, duplicated, not finite or of the wrong shape.
    """
    who = f"{label}, behaviour {spec.behavior_id!r}"
    ending = _columns(spec, endings, f"{who}: TerminalSteps")
    deciding = _columns(spec, decisions, f"{who}: DecisionSteps")
    ended = len(ending.ids)
    interrupted = endings.interrupted if hasattr(endings, "interrupted") else endings.max_step  # before version 0.22
    return GameRows(
        ids=np.concatenate((ending.ids, deciding.ids)),
        rewards=np.concatenate((ending.rewards, deciding.rewards)),
        ended=ended,
        interrupted=np.asarray(interrupted, np.bool_).reshape(ended),
        observations=tuple(map(np.concatenate, zip(ending.observations, deciding.observations, strict=True))),
        action_masks=_masks(spec.actions, decisions, len(deciding.ids), f"{who}: DecisionSteps"),
        group_ids=np.concatenate((ending.group_ids, deciding.group_ids)),
        group_rewards=np.concatenate((ending.group_rewards, deciding.group_rewards)),
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
    """The columns [n] of one kind of steps: `DecisionSteps` or `TerminalSteps`."""

    ids: NDArray[np.int32]
    rewards: NDArray[np.float32]
    observations: list[Array]
    group_ids: NDArray[np.int32]
    group_rewards: NDArray[np.float32]


def _columns(spec: BehaviorSpec, steps: Any, what: str) -> _StepColumns:
    ids = np.asarray(steps.agent_id, np.int32).reshape(-1)
    n = len(ids)
    if len(np.unique(ids)) != n:
        raise BrokenEnvironmentError(f"{what}.agent_id contains an agent twice: {ids.tolist()}")
    if len(steps.obs) != len(spec.observations):
        raise BrokenEnvironmentError(f"{what}.obs has {len(steps.obs)} arrays; expected {len(spec.observations)}")

    def numbers(name: str, values: Any, shape: tuple[int, ...] = ()) -> NDArray[np.float32]:
        with np.errstate(over="ignore"):  # reported below
            column = np.asarray(values, np.float32)
        if n == 0:
            return np.zeros((0, *shape), np.float32)
        if column.shape != (n, *shape):
            raise BrokenEnvironmentError(f"{what}.{name} has shape {column.shape}; expected {(n, *shape)}")
        if not np.isfinite(column).all():
            row, *index = np.argwhere(~np.isfinite(column))[0].tolist()
            at, value = f" at {index}" if index else "", unfit_number(np.asarray(values)[(row, *index)])
            raise BrokenEnvironmentError(f"{what}.{name} of agent {ids[row]}{at} is {value}")
        return column

    return _StepColumns(
        ids,
        numbers("reward", steps.reward),
        [numbers(f"obs[{at}]", steps.obs[at], observed.shape) for at, observed in enumerate(spec.observations)],
        np.asarray(getattr(steps, "group_id", np.zeros(n)), np.int32).reshape(n),
        numbers("group_reward", getattr(steps, "group_reward", np.zeros(n))),
    )


def _masks(spec: ActionSpec, decisions: Any, count: int, what: str) -> NDArray[np.bool_] | None:
    """Return masks [count, choices], true = allowed, from one or more mask arrays in which true = forbidden."""
    if not spec.masked:
        return None
    mask = getattr(decisions, "action_mask", None)
    if mask is None or not count:
        return np.ones((count, spec.mask_size), np.bool_)
    branches = [mask] if isinstance(mask, np.ndarray) else mask
    allowed = [~np.asarray(branch, np.bool_).reshape(count, -1) for branch in branches]
    reader = MaskReader.of_branches(spec, "at least one false value, because true forbids a choice")
    try:
        return reader.read(allowed[0] if len(allowed) == 1 else tuple(allowed), count)
    except MaskError as error:
        row = "" if error.row is None else f" of row {error.row}"
        raise BrokenEnvironmentError(f"{what}.action_mask{row} {error.problem}") from error


_STOPPED = "UnityCommunicatorStoppedException"
"""Name of the exception that an environment, from any package, raises when it has ended normally."""
Result = TypeVar("Result")
_NEEDED = ("reset", "step", "get_steps", "set_actions", "close")


class LowLevelGroup:
    """A group of objects with ML-Agents' `BaseEnv` interface.

    The objects have `behavior_specs`, `reset()`, `step()`, `get_steps(name)`, `set_actions(name, actions)` and
    `close()`. Behaviours may be unknown before the first reset, and more may appear later.

    Args:
        envs: the objects.
        name: the environments' name, used in messages.
        bridges: the bridge to each object's side channels; None without side channels.
    """

    def __init__(self, envs: Sequence[Any], name: str, bridges: Sequence[SideChannelBridge] | None = None) -> None:
        self.num_envs = len(envs)
        self._specs: dict[str, BehaviorSpec] = {}
        self.behavior_specs: Mapping[str, BehaviorSpec] = self._specs
        self._envs = envs
        self._name = name
        self._bridges = bridges or ()
        self._episodes = [GameEpisodes() for _ in envs]
        self._announced: list[set[str]] = [set() for _ in envs]
        self._decisions: dict[int, dict[str, slice]] = {}
        self._closed = False
        self._ended: set[int] = set()
        """Indices of the objects whose environments have ended; the other objects continue."""
        self._just_closed: list[int] = []

    def set_parameters(self, parameters: EpisodeParameters) -> None:
        """Send parameters over the environments' side channels."""
        if not self._bridges:
            log.warning(
                "environment_parameters have no effect, because they can't be sent to %s; add a parameter "
                "side_channels to its factory and pass it on to the environment",
                self._name,
            )
        for bridge in self._bridges:
            bridge.parameters = parameters

    def reset(self, seed: int | None = None) -> StepResult:
        """Reset all environments. `seed` has no effect, because ML-Agents' interface takes none.

        Raises:
            BrokenEnvironmentError: if an environment raises, or returns values that do not fit its specs.
            EnvironmentEnded: if the last environment has ended normally.
        """
        self._send_parameters()
        for index, env in self._playing():
            self._episodes[index].clear()
            try:
                self._call(index, "reset()", env.reset)
            except EnvironmentEnded as end:
                self._leave_out(index, end)
        self._just_closed = [*self._ended]
        return self._read()

    def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        """Advance all environments by one step. Raises the same errors as `reset`."""
        self._send_parameters()
        for index, env in self._playing():
            try:
                for behavior_id, rows in self._decisions.get(index, {}).items():
                    batch = actions[behavior_id]
                    chosen = ActionTuple(batch.continuous[rows], batch.discrete[rows])
                    self._call(index, "set_actions()", env.set_actions, behavior_id, chosen)
                self._call(index, "step()", env.step)
            except EnvironmentEnded as end:
                self._leave_out(index, end)
        return self._read()

    def close(self) -> None:
        """Close all environments; closing twice is allowed."""
        if self._closed:
            return
        self._closed = True
        for index, env in enumerate(self._envs):
            try:
                env.close()
            except Exception as error:  # a failing close must not leave the others open
                log.debug("%s: its close() failed: %s", self._label(index), error)

    def _playing(self) -> list[tuple[int, Any]]:
        return [(index, env) for index, env in enumerate(self._envs) if index not in self._ended]

    def _leave_out(self, index: int, end: EnvironmentEnded) -> None:
        """Continue with the other objects after one object's environment has ended.

        Raises:
            EnvironmentEnded: if no object is left.
        """
        self._ended.add(index)
        if len(self._ended) == self.num_envs:
            raise end
        log.info("%s. The others continue.", end)
        self._just_closed.append(index)

    def _send_parameters(self) -> None:
        for bridge in self._bridges:
            bridge.update()

    def _read(self) -> StepResult:
        left, self._just_closed = self._just_closed, []
        parts: dict[str, list[IndexedRows]] = {}
        for index, env in self._playing():
            for behavior_id, spec in self._call(index, "behavior_specs", _specs_of, env).items():
                rows = self._rows(index, env, behavior_id, spec)
                if len(rows.columns):
                    parts.setdefault(behavior_id, []).append((index, rows))
        self._decisions = decision_rows(parts)
        return StepResult(
            {
                behavior_id: agent_steps(of_behavior, self._specs[behavior_id])
                for behavior_id, of_behavior in parts.items()
            },
            statistics=merged_statistics(bridge.statistics() for bridge in self._bridges),
            closed=np.array(left, np.int32) if left else None,
        )

    def _rows(self, index: int, env: Any, behavior_id: str, spec: Any) -> TrackedRows:
        if behavior_id not in self._announced[index]:
            self._announce(index, behavior_id, spec)
            self._announced[index].add(behavior_id)
        decisions, endings = self._call(index, "get_steps()", env.get_steps, behavior_id)
        columns = read_steps(self._specs[behavior_id], decisions, endings, self._label(index))
        generation = self._bridges[index].generation if self._bridges else 0
        return self._episodes[index].of(behavior_id, columns, generation)

    def _announce(self, index: int, behavior_id: str, spec: Any) -> None:
        new = behavior_spec(behavior_id, spec, self._label(index))
        earlier = self._specs.setdefault(behavior_id, new)
        if earlier != new:
            raise StageError(
                f"{self._label(index)}: behaviour {behavior_id!r} has {new.seen} and {new.actions}, but in an "
                f"earlier instance {earlier.seen} and {earlier.actions}; all instances must have the same observations "
                "and actions"
            )

    def _call(self, index: int, what: str, call: Callable[..., Result], *arguments: Any) -> Result:
        try:
            return call(*arguments)
        except StageError:
            raise
        except Exception as error:
            if any(kind.__name__ == _STOPPED for kind in type(error).__mro__):
                raise EnvironmentEnded(f"{self._label(index)} has ended: {error}") from error
            raise BrokenEnvironmentError(f"{self._label(index)}: its {what} raised {describe_error(error)}") from error

    def _label(self, index: int) -> str:
        return self._name if self.num_envs == 1 else f"{self._name}, instance {index}"


def _specs_of(env: Any) -> dict[str, Any]:
    return dict(env.behavior_specs)


def make_low_level_group(request: factory.EnvironmentRequest) -> LowLevelGroup:
    """Make the group that the settings describe. Raises the same errors as `factory.make_group`.

    The factory is called once for each instance, with the options. If it takes these arguments, it also gets
    `worker_id` (the instance's number across all actors, so the ports differ), `seed` (the run's seed + worker_id) and
    `side_channels` (a list for Unity's constructor; without the list, environment parameters and engine settings have
    no effect).
    """
    settings, engine, first = request.settings, request.config.engine_settings, request.first_instance
    assert settings.factory is not None, "the schema asks for it"
    name = factory.factory_name(settings.factory)
    make = factory.find_factory(settings.factory, request.folder, first)
    gets_channels = "side_channels" in factory.parameter_names(make)
    bridges = [SideChannelBridge(engine, None, first + index, request.seed) for index in range(settings.num_envs)]
    envs: list[Any] = []
    try:
        for index, bridge in enumerate(bridges, first):
            offered = {"worker_id": index, "seed": request.seed + index, "side_channels": bridge.all}
            envs.append(_make(make, settings.options, offered, name))
    except BaseException:
        for env in envs:
            env.close()
        raise
    return LowLevelGroup(envs, name, bridges if gets_channels else None)


def _make(make: Callable[..., Any], options: Mapping[str, Any], offered: Mapping[str, Any], name: str) -> Any:
    with blaming("environment", "options"):
        arguments = check_arguments("environment.options", name, make, options, offered)
    env = factory.call(partial(make, **arguments), name)
    missing = [method for method in _NEEDED if not callable(getattr(env, method, None))]
    missing += [] if hasattr(env, "behavior_specs") else ["behavior_specs"]
    if missing:
        raise LoadError(
            f"{name} returned {type_of(env)}, which lacks {', '.join(missing)}; expected an object with the interface "
            "of ML-Agents' BaseEnv"
        )
    return env

"""Makes a run's environment group, with the maker that `headrace.config.environment_kinds` names for its kind.

Each maker is in the folder of its kind, and is imported only when it is called, because planning or validating a run
makes no environment. This module contains what several makers share. For `--validate`, that includes running other
projects' environment checkers, for advice beyond the checks that a run makes itself.
"""

from __future__ import annotations

import inspect
import os
import re
import socket
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from headrace.config import ActionRepeatSettings, EnvironmentSettings, RunConfig
from headrace.config.environment_kinds import load_entry
from headrace.queues.messages import ActionBatch, Array, Floats
from headrace.queues.specs import STEP_MUL, ActionSpec, BehaviorSpec
from headrace.stages.activity import preparing
from headrace.stages.environments.given import find_given, is_given
from headrace.stages.environments.parameters import EpisodeParameters, SupportsParameters
from headrace.stages.environments.protocol import AgentSteps, EnvironmentGroup, StepResult, WrappedGroup, maybe_await
from headrace.stages.errors import BrokenEnvironmentError, StageError, blaming, describe_error, describe_fault, type_of
from headrace.stages.loading import check_arguments, load_callable
from headrace.stages.slots import NOBODY, Numbers, Slots, enlarged
from headrace.stages.user_calls import call_user, calls_user

_STEPS_AT_ONCE = 8
"""Maximum number of environment steps in a tick in which no agent decides. A limit is necessary because the host waits
for each tick."""
_NONE = np.empty(0, np.int64)


class _AgentTable:
    """Arrays of one behaviour id's agents, with an element for each slot. Slot `NOBODY` belongs to no agent."""

    _not_by_slot: tuple[str, ...] = ()
    """Names of the arrays that have other elements."""

    def __init__(self) -> None:
        self._slots = Slots(1)
        self._env_ids = np.zeros(self._slots.total, np.int64)
        self._episode_ids = np.zeros(self._slots.total, np.int64)
        """[total] the environment's own episode ids."""

    def drop(self, env_ids: NDArray[np.int32]) -> None:
        """Forget the agents of the given instances."""
        used = self._slots.used()
        self._forget(used[np.isin(self._env_ids[used], env_ids)])

    def _add(self, agent_ids: Numbers, env_ids: NDArray[np.int32]) -> Numbers:
        """Give slots to new agents, and return the slots."""
        added, total = self._slots.add(agent_ids), self._slots.total
        if total > len(self._env_ids):
            for name, values in vars(self).items():
                if isinstance(values, np.ndarray) and name not in self._not_by_slot:
                    setattr(self, name, enlarged(values, total))
        self._env_ids[added] = env_ids
        return added

    def _forget(self, slots: Numbers) -> None:
        if len(slots):
            self._slots.remove(slots)


# As a wrapper, action repeat works with every kind of environment and needs no change to stages (docs/decisions/028).
class RepeatingGroup(WrappedGroup):
    """An environment group in which actions last several environment steps.

    Args:
        group: the environments, which this group closes.
        settings: how many steps each action lasts.
    """

    def __init__(self, group: EnvironmentGroup, settings: ActionRepeatSettings) -> None:
        super().__init__(group)
        self._settings = settings
        self.behavior_specs: Mapping[str, BehaviorSpec] = {}
        self._holds: dict[str, HeldActions] = {}
        self._acting_ids: tuple[str, ...] = ()
        """Ids of the behaviours that had rows in the last environment step."""
        self._learn_specs()

    async def reset(self, seed: int | None = None) -> StepResult:
        """Reset all instances and drop all held actions."""
        self._holds = {}
        return self._without_held(await maybe_await(self._group.reset, seed))

    async def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        """Start the new actions, and advance until an agent must decide, or for `_STEPS_AT_ONCE` steps."""
        for behavior_id, decided in actions.items():
            self._holds[behavior_id].begin(decided)
        for _ in range(_STEPS_AT_ONCE):
            held = {behavior_id: self._holds[behavior_id].actions() for behavior_id in self._acting_ids}
            result = self._without_held(await maybe_await(self._group.step, held))
            games = result.games is not None and len(result.games.env_ids)
            if result.steps or result.statistics or games or result.gone:
                break
        return result

    def _learn_specs(self) -> None:
        inner, specs = self._group.behavior_specs, self.behavior_specs
        if len(inner) != len(specs):
            self.behavior_specs = {key: specs.get(key) or repeated(inner[key], self._settings) for key in inner}

    def _without_held(self, result: StepResult) -> StepResult:
        """Return the result without the rows of agents that are still holding an action."""
        for gone in result.gone:
            for holds in self._holds.values():
                holds.drop(gone)
        self._learn_specs()
        deciding: dict[str, AgentSteps] = {}
        acting_ids = []
        for behavior_id, steps in result.steps.items():
            if not len(steps.agent_ids):
                continue
            acting_ids.append(behavior_id)
            if behavior_id not in self._holds:
                spec = self._group.behavior_specs[behavior_id]
                self._holds[behavior_id] = HeldActions(spec.actions, self._settings, spec.grouped)
            rows = self._holds[behavior_id].add(steps)
            if rows is not None:
                deciding[behavior_id] = rows
        self._acting_ids = tuple(acting_ids)
        return replace(result, steps=deciding)


def repeated(spec: BehaviorSpec, settings: ActionRepeatSettings) -> BehaviorSpec:
    """Return the spec with action repeat added.

    Raises:
        StageError: if the environment already repeats actions, or a learned repeat needs a name that is already taken.
    """
    actions = spec.actions
    if spec.action_repeat is not None:
        raise StageError(f"environment.action_repeat: the environment of {spec.behavior_id} already repeats actions")
    if settings.max is None:
        return replace(spec, action_repeat="fixed", spaces={**(spec.spaces or {}), "action_repeat": settings.steps})
    if STEP_MUL in (*actions.continuous_heads, *actions.branch_heads):
        raise StageError(
            f"environment.action_repeat: the actions of {spec.behavior_id} already have a part named {STEP_MUL}, which "
            "is the name of the learned repeat; rename that part, or use {steps: …} for a fixed repeat"
        )
    branches, names = (*actions.discrete_branches, settings.max), (*actions.branch_heads, STEP_MUL)
    return replace(
        spec, actions=replace(actions, discrete_branches=branches, branch_names=names), action_repeat="learned"
    )


class HeldActions(_AgentTable):
    """Holds each agent's action for that agent's number of environment steps.

    Sums accumulate the rewards since an agent's last decision: its own reward and, if there are groups, its group's. If
    rewards are discounted, undiscounted sums are accumulated too.

    Axis letters: n rows of an environment step, a agents whose actions the environment requests, s sums.

    Args:
        actions: the environment's actions, without `step_mul`.
        settings: how many steps each action lasts.
        grouped: True if there are group rewards.
    """

    _not_by_slot = ("_firsts", "_acting", "_deciding")

    def __init__(self, actions: ActionSpec, settings: ActionRepeatSettings, grouped: bool) -> None:
        super().__init__()
        self._steps, self._choices = settings.steps, settings.max
        self._grouped = grouped
        self._discount = settings.discount
        self._firsts = np.cumsum([0, *actions.discrete_branches])[:-1]
        total = self._slots.total
        self._continuous = np.zeros((total, actions.continuous_size), np.float32)
        self._discrete = np.zeros((total, len(actions.discrete_branches)), np.int32)
        self._left = np.zeros(total, np.int64)
        self._frames = np.zeros(total, np.int32)
        self._weights = np.ones(total)
        """[total] the discount factor for each agent's next reward."""
        self._sums = np.zeros((total, (1 + grouped) * (1 if settings.discount == 1 else 2)))
        self._acting = self._deciding = _NONE
        """Slots of the agents whose actions the environment last requested, and slots of the agents that must decide
        now."""
        self._last_ids = b""
        """Bytes of the last step's agent and episode ids, which show whether the agents are unchanged. Empty if an
        episode ended in that step."""

    def begin(self, decided: ActionBatch) -> None:
        """Start holding the new actions: one for each agent that had to decide, in the order of those agents' rows."""
        slots, branches = self._deciding, self._discrete.shape[1]
        self._continuous[slots] = decided.continuous
        self._discrete[slots] = decided.discrete[:, :branches]
        self._left[slots] = self._steps if self._steps is not None else decided.discrete[:, branches] + 1
        self._forget_rewards(slots)

    def actions(self) -> ActionBatch:
        """Return the actions that the environment needs for its next step."""
        slots = self._acting
        self._left[slots] -= 1
        self._frames[slots] += 1
        return ActionBatch(self._continuous[slots], self._discrete[slots])

    def add(self, steps: AgentSteps) -> AgentSteps | None:
        """Add an environment step's rows; return the rows of ended or deciding agents, or None if there are none."""
        ended = steps.ended
        key = steps.agent_ids.tobytes() + steps.episode_ids.tobytes()
        as_before = not ended and key == self._last_ids
        slots = self._acting if as_before else self._locate(steps)
        self._last_ids = b"" if ended else key
        self._acting = acting = slots[ended:]
        totals, frames = self._sums[slots], self._frames[slots]
        totals += self._received(steps, slots)
        if not as_before:
            fresh = ended + self._begin_episodes(slots[:ended], acting, steps)
            totals[fresh], frames[fresh] = 0.0, 0
        self._sums[acting] = totals[ended:]
        if self._discount != 1:
            self._weights[acting] *= self._discount
        deciding = self._left[acting] <= 0
        if steps.action_masks is not None:
            deciding |= self._forbidden(acting, steps.action_masks)
        self._deciding = acting[deciding]
        if not ended and not len(self._deciding):
            return None
        return self._rows(steps, deciding, totals.astype(np.float32), frames)

    def _locate(self, steps: AgentSteps) -> Numbers:
        """Return each row's slot [n]: a new slot for an agent's first decision, `NOBODY` for other unknown agents."""
        slots = self._slots.find(steps.agent_ids)
        acting = slots[steps.ended :]
        new = (acting == NOBODY).nonzero()[0]
        if len(new):
            deciding = new + steps.ended
            acting[new] = added = self._add(steps.agent_ids[deciding], steps.env_ids[deciding])
            self._episode_ids[added] = steps.episode_ids[deciding] - 1  # no running episode
        return slots

    def _begin_episodes(self, ending: Numbers, acting: Numbers, steps: AgentSteps) -> Numbers:
        """Forget agents whose episodes ended. Return the indices [k] along axis a of the agents that begin one.

        The previous episode of an agent may have ended in this step or earlier, or may never have ended.
        """
        episode_ids = steps.episode_ids[steps.ended :]
        begins = self._episode_ids[acting] != episode_ids
        if len(ending):
            ended = np.zeros(len(self._left), np.bool_)
            ended[ending] = True
            begins |= ended[acting]
            ended[acting] = ended[NOBODY] = False
            self._forget(ended.nonzero()[0])
        fresh: Numbers = begins.nonzero()[0]
        if len(fresh):
            self._episode_ids[acting] = episode_ids
            self._left[acting[fresh]] = 0
            self._forget_rewards(acting[fresh])
        return fresh

    def _received(self, steps: AgentSteps, slots: Numbers) -> NDArray[Any]:
        """Return the step's rewards [n, s], one column for each sum."""
        rewards: Array = steps.rewards[:, None]
        if self._grouped:
            shared = np.zeros(len(slots), np.float32) if steps.group_rewards is None else steps.group_rewards
            rewards = np.stack((steps.rewards, shared), axis=1)
        if self._discount == 1:
            return rewards
        return np.concatenate((self._weights[slots][:, None] * rewards, rewards), axis=1)

    def _forbidden(self, acting: Numbers, masks: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return flags [a], true where a mask forbids the agent's held action."""
        chosen = self._firsts + self._discrete[acting]
        forbidden: NDArray[np.bool_] = np.logical_or.reduce(~np.take_along_axis(masks, chosen, axis=1), axis=1)
        return forbidden

    def _rows(
        self, steps: AgentSteps, deciding: NDArray[np.bool_], totals: Floats, frames: NDArray[np.int32]
    ) -> AgentSteps:
        masks = steps.action_masks
        if masks is not None:
            masks = masks[deciding]
            if self._choices is not None:
                masks = np.concatenate((masks, np.ones((len(masks), self._choices), np.bool_)), axis=1)
        rows: Any = slice(None)
        if not deciding.all():
            rows = np.concatenate((np.arange(steps.ended), steps.ended + deciding.nonzero()[0]))
        undiscounted = None
        if self._discount != 1:
            undiscounted = np.zeros((len(totals), 2), np.float32)
            undiscounted[:, : 1 + self._grouped] = totals[:, 1 + self._grouped :]
        return replace(
            steps,
            agent_ids=steps.agent_ids[rows],
            env_ids=steps.env_ids[rows],
            episode_ids=steps.episode_ids[rows],
            observations=tuple(observation[rows] for observation in steps.observations),
            rewards=totals[rows, 0],
            action_masks=masks,
            group_ids=None if steps.group_ids is None else steps.group_ids[rows],
            group_rewards=totals[rows, 1] if self._grouped else None,
            env_frames=frames[rows],
            undiscounted=None if undiscounted is None else undiscounted[rows],
        )

    def _forget_rewards(self, slots: Numbers) -> None:
        self._sums[slots] = 0.0
        self._weights[slots] = 1.0
        self._frames[slots] = 0

    def _forget(self, slots: Numbers) -> None:
        super()._forget(slots)
        if len(slots):
            self._last_ids = b""


_CUTS = 2**20
"""Factor for the environment's episode ids; each truncation adds 1, so ids still increase."""


class LimitedGroup(WrappedGroup):
    """An environment group that limits the number of decisions in each agent's episode.

    Args:
        group: the environments, which this group closes.
        steps: number of an agent's decisions after which its episode is truncated, and its next episode begins.
    """

    def __init__(self, group: EnvironmentGroup, steps: int) -> None:
        super().__init__(group)
        self._limit = steps
        self._ages: dict[str, _Ages] = {}
        self._parameters = EpisodeParameters()
        if isinstance(group, SupportsParameters):
            self.set_parameters = self._pass_on

    @property
    def behavior_specs(self) -> Mapping[str, BehaviorSpec]:
        """The group's specs."""
        return self._group.behavior_specs

    async def reset(self, seed: int | None = None) -> StepResult:
        """Reset all instances."""
        self._ages = {}
        return self._limited(await maybe_await(self._group.reset, seed))

    async def step(self, actions: Mapping[str, ActionBatch]) -> StepResult:
        """Advance one tick, and truncate the episodes that have reached the limit."""
        return self._limited(await maybe_await(self._group.step, actions))

    def _pass_on(self, parameters: EpisodeParameters) -> None:
        assert isinstance(self._group, SupportsParameters), "it is, or this is not called"
        self._parameters = parameters
        self._group.set_parameters(parameters)

    def _limited(self, result: StepResult) -> StepResult:
        for gone in result.gone:
            for ages in self._ages.values():
                ages.drop(gone)
        steps = {
            behavior_id: self._ages.setdefault(behavior_id, _Ages(self._limit)).add(rows, self._parameters.generation)
            for behavior_id, rows in result.steps.items()
        }
        return replace(result, steps=steps)


class _Ages(_AgentTable):
    """Counts the decisions in the running episodes of one behaviour id."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        total = self._slots.total
        self._decisions = np.zeros(total, np.int64)
        self._cuts = np.zeros(total, np.int64)
        """[slots] number of truncations so far in the environment's current episode."""
        self._generations = np.zeros(total, np.int32)
        """[slots] generation of the environment parameters at the episode's start."""

    def add(self, steps: AgentSteps, generation: int) -> AgentSteps:
        """Count a tick's decisions; return its rows, with an ending before each decision beyond the limit."""
        slots = self._slots.find(steps.agent_ids)
        ending, acting = slots[: steps.ended], slots[steps.ended :]
        numbers = steps.episode_ids * _CUTS + np.where(
            self._episode_ids[slots] == steps.episode_ids, self._cuts[slots], 0
        )
        self._forget(ending[ending != NOBODY])
        acting = self._slots.find(steps.agent_ids[steps.ended :])
        new = (acting == NOBODY).nonzero()[0]
        if len(new):
            deciding = new + steps.ended
            acting[new] = added = self._add(steps.agent_ids[deciding], steps.env_ids[deciding])
            self._decisions[added] = 0
        episode_ids = steps.episode_ids[steps.ended :]
        begins = (self._decisions[acting] == 0) | (self._episode_ids[acting] != episode_ids)
        self._episode_ids[acting] = episode_ids
        self._decisions[acting[begins]] = self._cuts[acting[begins]] = 0
        self._generations[acting[begins]] = generation
        self._decisions[acting] += 1
        over = self._decisions[acting] > self._limit
        if not over.any():
            return replace(steps, episode_ids=numbers)
        cut = acting[over]
        begun = self._generations[cut]
        self._cuts[cut] += 1
        self._decisions[cut], self._generations[cut] = 1, generation
        after = numbers.copy()
        after[steps.ended :][over] += 1
        return _cut(steps, numbers, after, over, begun)


def _cut(
    steps: AgentSteps, before: Numbers, after: Numbers, over: NDArray[np.bool_], begun: NDArray[np.int32]
) -> AgentSteps:
    """Insert a truncated ending before each decision that `over` [d] marks as the first one beyond the limit."""
    ended, cut = steps.ended, steps.ended + over.nonzero()[0]
    rows = np.concatenate((np.arange(ended), cut, np.arange(ended, len(before))))
    fresh = np.concatenate((np.zeros(ended + len(cut), np.bool_), over))
    """[n] true in the first rows of the new episodes, which have no reward yet."""

    def received(values: NDArray[Any] | None) -> Any:
        if values is None:
            return None
        values_of_rows = values[rows]
        values_of_rows[fresh] = 0
        return values_of_rows

    none, all_of_them = np.zeros(len(cut), np.bool_), np.ones(len(cut), np.bool_)
    parameters = steps.parameters
    if parameters is not None:
        parameters = np.concatenate((parameters, begun))
    return replace(
        steps,
        agent_ids=steps.agent_ids[rows],
        env_ids=steps.env_ids[rows],
        episode_ids=np.concatenate((before[:ended], before[cut], after[ended:])),
        observations=tuple(observation[rows] for observation in steps.observations),
        rewards=received(steps.rewards),
        ended=ended + len(cut),
        terminated=np.concatenate((steps.terminated, none)),
        truncated=np.concatenate((steps.truncated, all_of_them)),
        group_ids=None if steps.group_ids is None else steps.group_ids[rows],
        group_rewards=received(steps.group_rewards),
        parameters=parameters,
        env_frames=received(steps.env_frames),
        undiscounted=received(steps.undiscounted),
    )


HUMAN = "human"
"""The render mode that opens a window."""
_X_PORT = 6000
_ANSWER_S = 3.0
"""Seconds to wait for an X display on another machine to answer."""


@dataclass(frozen=True, slots=True)
class EnvironmentRequest:
    """An actor's request for environments, to be fulfilled by the maker for their kind."""

    config: RunConfig
    seed: int = 0
    """The run's seed."""
    replica: int = 0
    """The actor's number. Instances are numbered across all actors, and the instances for evaluation have the highest
    numbers."""
    run_folder: Path | None = None
    """`results/<run-id>`; None to write no files."""

    @property
    def settings(self) -> EnvironmentSettings:
        """The YAML's `environment` section."""
        assert self.config.environment is not None, "only Unity does without the section"
        return self.config.environment

    @property
    def folder(self) -> Path | None:
        """The YAML file's folder, whose modules can be imported."""
        return self.config.source_folder

    @property
    def exact(self) -> bool:
        """True if float64 vectors stay float64, because they are normalised before they are rounded."""
        settings = (*self.config.behaviors.values(), self.config.default_settings)
        return any(block is not None and block.normalizes for block in settings)

    @property
    def clips(self) -> bool:
        """True if continuous actions use the environment's range, clipped to its bounds."""
        return self.settings.action_bounds == "clip"

    @property
    def first_instance(self) -> int:
        """Number of the actor's first instance, counted across all actors."""
        return self.replica * self.settings.num_envs


@preparing()
@calls_user
def make_group(
    request: EnvironmentRequest, film: Callable[[EnvironmentGroup], EnvironmentGroup] | None = None
) -> EnvironmentGroup:
    """Make a configuration's environment group, with a time limit and action repeat if they are configured.

    Args:
        request: the configuration, and the actor that needs the environments.
        film: wraps the group to record video, inside the wrappers that hold actions or truncate episodes.

    Raises:
        LoadError: if a module or attribute can't be found, or does not make an environment.
        StageError: if the environment does not exist, does not take the options, or needs a display on a machine
            without one.
        BrokenEnvironmentError: if the environment fails while it is made.
    """
    if request.config.environment is not None:
        check_window(request.settings.options)
    group = load_entry(request.config.environment_kind.group)(request)
    assert isinstance(group, EnvironmentGroup), f"{type(group).__name__} is not an environment group"
    if request.config.environment is not None and is_given(request.settings.factory):
        find_given(request.settings.factory).lend_to(group)
    if film is not None:
        group = film(group)
    settings = request.config.environment
    if settings is None:
        return group
    if settings.max_episode_steps is not None and not getattr(group, "limits_episodes", False):
        group = LimitedGroup(group, settings.max_episode_steps)
    if settings.action_repeat is not None and not request.config.environment_kind.holds_actions:
        group = RepeatingGroup(group, settings.action_repeat)
    return cast("EnvironmentGroup", group)


async def announced_specs(request: EnvironmentRequest) -> dict[str, BehaviorSpec]:
    """Return the specs of a run's environment, keyed by behaviour name.

    Raises:
        StageError: if the environment can't be made or started.
    """
    config = request.config
    one = {"num_envs": 1}
    environment = config.environment and config.environment.model_copy(update=one)
    settings = config.env_settings.model_copy(update=one)
    alone = config.model_copy(update={"environment": environment, "env_settings": settings})
    group = make_group(replace(request, config=alone))
    try:
        await maybe_await(group.reset, request.seed)
        return {spec.name: spec for spec in group.behavior_specs.values()}
    finally:
        await maybe_await(group.close)


def named_in_section(config: RunConfig) -> Iterator[Callable[[], Any]]:
    """Yield functions that import the factory and the wrappers of the `environment` section.

    Each function raises a LoadError if its object can't be found, or can't be called.
    """
    settings = config.environment
    assert settings is not None, "only Unity does without the section"
    if settings.factory is not None:
        yield partial(find_factory, settings.factory, config.source_folder)
    for index in range(len(settings.wrappers)):
        yield partial(find_wrapper, settings, index, config.source_folder)


def find_factory(reference: str, folder: Path | None, first: int = 0) -> Callable[..., Any]:
    """Import the object that `environment.factory` names, or find the object that was passed to `run()`.

    Args:
        reference: the value of `environment.factory`.
        folder: the YAML file's folder, whose modules can be imported.
        first: number of the first instance to make.

    Raises:
        LoadError: if the object can't be found, or can't be called.
    """
    with blaming("environment", "factory"):
        if is_given(reference):
            return find_given(reference).maker(first)
        expected = "a callable that makes an environment"
        return load_callable(reference, folder, "environment factory", expected)


def factory_name(reference: str) -> str:
    """Return the name that messages use for a factory's environment."""
    return (
        f"environment {reference.partition(':')[2]} (passed to run())"
        if is_given(reference)
        else (f"environment factory {reference!r}")
    )


def environment_name(settings: EnvironmentSettings) -> str:
    """Return the name that messages use for a Gymnasium environment."""
    return factory_name(settings.factory) if settings.factory else f"Gymnasium environment {settings.id!r}"


def call_factory(request: EnvironmentRequest, name: str) -> tuple[Any, Callable[[], Any]]:
    """Call `environment.factory` with the options, and with `num_envs` and `behavior` if it takes them.

    Returns:
        the environment or an entire group, and a function that makes another environment.
    """
    settings = request.settings
    assert settings.factory is not None, "the schema asks for an id or a factory"
    make = find_factory(settings.factory, request.folder, request.first_instance)
    offered = {"num_envs": settings.num_envs, "behavior": settings.behavior or ""}
    make = partial(make, **arguments_for(make, settings.options, offered, name))
    return call(make, name), make


def check_own_group(group: EnvironmentGroup, settings: EnvironmentSettings, name: str) -> EnvironmentGroup:
    """Check a group that the user's factory made, and return it unchanged.

    Raises:
        StageError: if the settings request something that only works with single environments.
    """
    for key in ("wrappers", "observations", "behaviors", "rotate_sides"):
        if getattr(settings, key):
            group.close()
            raise StageError(
                f"environment.{key}: can't be combined with {name}, which returned an EnvironmentGroup "
                f"({type(group).__name__}); expected single environments, or leave it out"
            )
    return group


def parameter_names(make: Callable[..., Any]) -> frozenset[str]:
    """Return the names of a callable's keyword arguments; an empty set if it has no signature."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(name for name, parameter in _parameters(make).items() if parameter.kind in named)


def takes_any(make: Callable[..., Any]) -> bool:
    """Return True if a callable takes arbitrary keyword arguments; False if it has no signature."""
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in _parameters(make).values())


def _parameters(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(make).parameters
    except (TypeError, ValueError):  # some callables written in C have no signature
        return {}


def arguments_for(
    make: Callable[..., Any], options: Mapping[str, Any], offered: Mapping[str, Any], name: str
) -> dict[str, Any]:
    """Return the keyword arguments for a callable: the options, and those in `offered` that it takes.

    Raises:
        StageError: if the options do not fit the callable.
    """
    for key in offered.keys() & options.keys() & parameter_names(make):
        raise StageError(
            f"environment.options: {key} is not an option of {name}; set environment.{key} instead",
            key=("environment", "options", key),
        )
    with blaming("environment", "options"):
        return check_arguments("environment.options", name, make, options, offered)


def call(make: Callable[[], Any], name: str) -> Any:
    """Call a function that makes an environment.

    Raises:
        BrokenEnvironmentError: if the callable raises an error other than a StageError.
    """
    try:
        return call_user(make)
    except StageError:
        raise
    except Exception as error:
        raise BrokenEnvironmentError(f"{name} raised {describe_fault(error)}") from error


def make_all(first: Any, make: Callable[[], Any], num_envs: int, name: str) -> list[Any]:
    """Make the other environments, and return all, the first one in front.

    Raises:
        StageError: if `make` returns the same object twice.
        BrokenEnvironmentError: if `make` raises.
    """
    envs = [first, *(call(make, name) for _ in range(num_envs - 1))]
    if len({id(env) for env in envs}) < num_envs:
        raise StageError(f"{name} returned the same environment twice; it must make a new one on each call")
    return envs


# The wrappers of `environment.wrappers`, for single environments of any kind.


def find_wrapper(settings: EnvironmentSettings, index: int, folder: Path | None) -> Callable[..., Any]:
    """Import the object that entry `index` of `environment.wrappers` names.

    Raises:
        LoadError: if the object can't be found, or can't be called.
    """
    with blaming("environment", "wrappers", index, "use"):
        return load_callable(settings.wrappers[index].use, folder, "environment wrapper", "a class or function")


def chain_wrappers(
    settings: EnvironmentSettings, folder: Path | None, name: str, fits: Callable[[Any], bool], expected: str
) -> Callable[[Any], Any] | None:
    """Chain the settings' wrappers into one function.

    Args:
        settings: the YAML's `environment` section, which lists the innermost wrapper first.
        folder: the YAML file's folder, whose modules can be imported.
        name: the environment's name, used in messages.
        fits: returns True if a wrapper's result is an environment of the right kind.
        expected: names the right kind in messages.

    Returns:
        a function that wraps an environment, and raises a StageError if a wrapper raises or returns something else;
        None if there are no wrappers.

    Raises:
        LoadError: if a wrapper can't be found, or can't be called.
    """
    if not settings.wrappers:
        return None
    wrappers = [find_wrapper(settings, index, folder) for index in range(len(settings.wrappers))]

    def wrap(env: Any) -> Any:
        for entry, wrapper in zip(settings.wrappers, wrappers, strict=True):
            try:
                env = wrapper(env, **entry.with_)
            except Exception as error:
                raise StageError(
                    f"{name}: environment wrapper {entry.use!r} with {dict(entry.with_)} raised {describe_fault(error)}"
                ) from error
            if not fits(env):
                raise StageError(
                    f"{name}: environment wrapper {entry.use!r} returned {type_of(env)}; expected {expected}"
                )
        return env

    return wrap


# Windows of environments that draw themselves on a screen (`render_mode: human` of Gymnasium and PettingZoo).


def check_window(options: Mapping[str, Any]) -> None:
    """Check that the window requested by an environment's options can be shown.

    Raises:
        StageError: if there is no display.
    """
    if options.get("render_mode") == HUMAN and (reason := no_screen()):
        raise StageError(f"environment.options: render_mode human opens a window, but {reason}")


def no_screen() -> str:
    """Return why no window can be opened, and an alternative; an empty string if a window can be opened."""
    if sys.platform != "linux" or os.environ.get("SDL_VIDEODRIVER"):
        return ""
    instead = "Record the game with --inference --video DIR, or watch it in the browser with --monitor"
    if os.environ.get("WAYLAND_DISPLAY"):
        return ""
    display = os.environ.get("DISPLAY", "")
    if not display:
        return f"this machine has no display (neither DISPLAY nor WAYLAND_DISPLAY is set). {instead}"
    return "" if _answers(display) else f"no display responds at DISPLAY={display}. {instead}"


def _answers(display: str) -> bool:
    """Return False if no X server listens at the display. In that case, SDL would draw invisibly, without an error."""
    parts = re.fullmatch(r"(?P<host>[^:]*):(?P<number>\d+)(\.\d+)?", display)
    if parts is None:  # a form that only X itself can resolve
        return True
    host, number = parts["host"], int(parts["number"])
    if host not in ("", "unix"):
        return _connects(socket.AF_INET, (host, _X_PORT + number))
    path = f"/tmp/.X11-unix/X{number}"
    return any(_connects(socket.AF_UNIX, address) for address in (path, f"\0{path}"))


def _connects(family: int, address: Any) -> bool:
    with socket.socket(family) as trial:
        trial.settimeout(_ANSWER_S)
        try:
            trial.connect(address)
        except OSError:
            return False
    return True


def words_of(check: Callable[[], Any], checker: str, name: str) -> Iterator[str]:
    """Run a checker and yield its findings.

    Args:
        check: the checker, which raises an error if it finds something.
        checker: the checker's name.
        name: the environment's name.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about rendering and other things that training does not use
        try:
            check()
        except AssertionError as error:
            if str(error):  # a bare assertion has no message
                yield f"{name}: {checker} says: {' '.join(str(error).split())}"
        except Exception as error:
            yield f"{name}: {checker} failed with {describe_error(error)}"

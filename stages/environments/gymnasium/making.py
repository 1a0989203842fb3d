"""Makes a group of Gymnasium environments from the `environment` section.

For `--validate`, this module also yields what Gymnasium's environment checker finds, in addition to a run's own checks.
This module can be imported without gymnasium, because `--validate` usually uses it only to import what the section
names, and a learner uses only the rewards of goal environments.

`GymnasiumGoalRewards` gives these rewards as a function of goals, for hindsight experience replay. Goal environments
have observations `observation`, `achieved_goal` and `desired_goal`, and a method `compute_reward(achieved, desired,
info)` (Gymnasium-Robotics' `GoalEnv`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config import EnvironmentSettings, RunConfig
from headrace.queues.messages import Array
from headrace.stages.environments import factory
from headrace.stages.environments.factory import EnvironmentRequest, environment_name, words_of
from headrace.stages.environments.given import given_object
from headrace.stages.environments.protocol import ACHIEVED_GOAL, DESIRED_GOAL, EnvironmentGroup
from headrace.stages.environments.spaces.masks import MASK
from headrace.stages.errors import (
    BrokenEnvironmentError,
    LoadError,
    NotFiniteError,
    StageError,
    blaming,
    describe_fault,
    type_of,
)
from headrace.stages.loading import import_module
from headrace.stages.user_calls import call_user


def make_gymnasium_group(request: factory.EnvironmentRequest) -> EnvironmentGroup:
    """Make the group that the settings describe. Raises the same errors as `factory.make_group`.

    With environment parameters, single environments are preferred to a vectorised implementation, which starts episodes
    itself, without parameters.
    """
    from gymnasium import Env
    from gymnasium.vector import VectorEnv
    from gymnasium.wrappers import TimeLimit

    from headrace.stages.environments.gymnasium.group import GymnasiumGroup
    from headrace.stages.environments.gymnasium.singles import advice_for_class, make_vector, vectorise

    def wrap(limit: int | None) -> Callable[[Any], Any] | None:
        chain = factory.chain_wrappers(
            settings, request.folder, name, lambda env: isinstance(env, Env), "a gymnasium.Env"
        )
        if limit is None:
            return chain
        return lambda env: TimeLimit(env if chain is None else chain(env), limit)

    settings, name = request.settings, environment_name(request.settings)
    # A vectorised implementation has no single environments whose episodes could be limited one by one.
    singles = settings.options.get("vectorization_mode") != "vector_entry_point"
    if settings.id is not None:
        _import_registrar(settings, request.folder)
        singly = bool(request.config.environment_parameters)
        wrapped = wrap(settings.max_episode_steps if singles else None)
        envs = make_vector(settings.id, settings.num_envs, settings.options, name, wrapped, singly)
    else:
        env, make = factory.call_factory(request, name)
        if isinstance(env, EnvironmentGroup):
            return factory.check_own_group(env, settings, name)
        if not isinstance(env, Env | VectorEnv):
            raise LoadError(
                f"{name} returned {type_of(env)}; expected a gymnasium.Env, a gymnasium.vector.VectorEnv or an "
                f"EnvironmentGroup (num_envs, behavior_specs, reset, step, close){advice_for_class(env)}"
            )
        singles = not isinstance(env, VectorEnv)  # EnvPool's environments are instances of both
        envs = vectorise(env, make, settings.num_envs, name, wrap(settings.max_episode_steps if singles else None))
    group = GymnasiumGroup(
        envs, settings.behavior or "", name, settings.observations, settings.info_keys, request.exact, request.clips
    )
    group.limits_episodes = singles
    return group


def make_single(request: factory.EnvironmentRequest) -> tuple[Any, Callable[[], object]]:
    """Make a single environment from the settings, without a window.

    Raises the same errors as `factory.make_group`.

    Returns:
        the environment with its wrappers, or None if only a vectorised implementation exists; and a function that
        closes it.
    """
    settings = request.settings
    options = {key: value for key, value in settings.options.items() if (key, value) != ("render_mode", factory.HUMAN)}
    if settings.id is not None:
        options["vectorization_mode"] = "sync"
    settings = settings.model_copy(update={"num_envs": 1, "options": options})
    group = make_gymnasium_group(replace(request, config=request.config.model_copy(update={"environment": settings})))
    return getattr(group, "single", None), group.close


def named_in_section(config: RunConfig) -> Iterator[Callable[[], Any]]:
    """Yield functions that import the factory, the wrappers, and the module before the colon in an id."""
    yield from factory.named_in_section(config)
    if config.environment is not None and config.environment.id is not None:
        yield partial(_import_registrar, config.environment, config.source_folder)


def _import_registrar(settings: EnvironmentSettings, folder: Path | None) -> None:
    """Import the module before the colon in an id; the module registers the environment."""
    module, _, _ = (settings.id or "").rpartition(":")
    if module:  # Gymnasium imports it too, but does not search the YAML's folder
        with blaming("environment", "id"):
            import_module(module, folder, environment_name(settings))


_CHECKER = "Gymnasium's own checker (gymnasium.utils.env_checker)"


def of_gymnasium(request: EnvironmentRequest) -> Iterator[str]:
    """Yield findings about a single environment without wrappers, or nothing if all environments are vectorised."""
    from gymnasium import Env

    try:
        env, close = make_single(request)
    except StageError:  # the vectorised implementation takes options that single ones lack
        return
    single = getattr(env, "unwrapped", None)
    if isinstance(single, Env):  # a wrapper may translate a different interface
        yield from words_of(partial(_check, single), _CHECKER, environment_name(request.settings))
    with suppress(Exception):
        close()


def _check(env: Any) -> None:
    """Run the checker, unless there are action masks, which its random actions would ignore."""
    from gymnasium.utils.env_checker import check_env

    if not any(isinstance(part, Mapping) and MASK in part for part in env.reset(seed=0)):
        check_env(env, skip_render_check=True)


_CONVENTION = (
    "hindsight calls compute_reward(achieved_goal, desired_goal, info) once for n rows, with two arrays [n, …] and a "
    "list of n empty infos, and expects n numbers, as Stable-Baselines3's HerReplayBuffer does"
)


# The learner has its own instance: querying the actors would cost a round trip for each update (docs/decisions/041).
class GymnasiumGoalRewards:
    """A `GoalRewards` for Gymnasium environments.

    `open` makes an instance of the environment with an actor's settings; the instance is never stepped. An object that
    was passed to `run()` is used directly, in its own process.

    Args:
        request: names the environment.
    """

    def __init__(self, request: factory.EnvironmentRequest) -> None:
        self._request = request
        self._close: Callable[[], object] = lambda: None
        self._compute: Callable[[Array, Array, Any], Any] | None = None

    def open(self, size: int) -> None:
        """Make the instance, and compute rewards for a few goals from its spaces; see `GoalRewards`."""
        settings = self._request.settings
        self._name = factory.environment_name(settings).rstrip(",")
        env, seed = given_object(settings.factory), 0
        if env is None:
            env, self._close = make_single(self._request)
            if env is None:
                raise StageError(
                    f"{self._name}: hindsight needs a single environment to compute rewards, but all environments are "
                    "vectorised; use single environments, or leave hindsight out"
                )
            env.reset(seed=seed)
        self._spaces = [_goal_space(env, key, size, self._name) for key in (ACHIEVED_GOAL, DESIRED_GOAL)]
        try:
            self._compute = getattr(env, "get_wrapper_attr", lambda name: getattr(env, name))("compute_reward")
        except AttributeError:
            raise StageError(
                f"{self._name}: hindsight recomputes rewards for other goals, but the environment has no method "
                "compute_reward(achieved_goal, desired_goal, info); add it, or leave hindsight out"
            ) from None
        spaces = copy.deepcopy(self._spaces)
        for space in spaces:
            space.seed(seed)
        self(*(np.stack([space.sample().ravel() for _ in range(size + 2)]) for space in spaces))

    def __call__(self, achieved: Array, desired: Array) -> NDArray[np.float32]:
        """Compute the rewards [n] of n steps in one call; see `GoalRewards`."""
        assert self._compute is not None, "it is open"
        count = len(achieved)
        goals = [
            rows.astype(space.dtype).reshape(count, *space.shape)
            for rows, space in zip((achieved, desired), self._spaces, strict=True)
        ]
        try:
            raw = call_user(self._compute, goals[0], goals[1], [{} for _ in range(count)])
        except Exception as error:
            raise BrokenEnvironmentError(
                f"{self._name}: its compute_reward() raised {describe_fault(error)} on {count} rows; {_CONVENTION}"
            ) from error
        rewards = np.asarray(raw)
        if rewards.dtype.kind not in "biuf" or rewards.shape not in ((count,), (count, 1)):
            got = f"an array {rewards.dtype} {list(rewards.shape)}" if isinstance(raw, np.ndarray) else type_of(raw)
            raise BrokenEnvironmentError(
                f"{self._name}: its compute_reward() returned {got} for {count} rows; {_CONVENTION}"
            )
        rewards = rewards.reshape(count).astype(np.float32)
        if not np.isfinite(rewards).all():
            row = int(np.flatnonzero(~np.isfinite(rewards))[0])
            raise NotFiniteError(
                f"{self._name}: its compute_reward() returned {rewards[row]} for the achieved goal "
                f"{goals[0][row].tolist()} and the desired goal {goals[1][row].tolist()}"
            )
        return rewards

    def close(self) -> None:
        """Close the instance, if one was made."""
        self._close()


def _goal_space(env: Any, key: str, size: int, name: str) -> Any:
    """Return a goal's space, which must be an array of `size` numbers."""
    from gymnasium.spaces import Box, MultiBinary

    space = (getattr(env.observation_space, "spaces", None) or {}).get(key)
    if isinstance(space, Box | MultiBinary) and prod(space.shape) == size:
        return space
    raise StageError(
        f"{name}: its observation '{key}' has the space {space}; hindsight expects a Box or MultiBinary of {size} "
        "numbers; change it with a wrapper, or leave hindsight out"
    )
